"""Routes of `covey serve`. docs/engines.md lists them for clients of another language.

GET    /health  /metrics  /covey/facts  /covey/label  /covey/progress
POST   /covey/draw  /covey/logprobs  /covey/weights  /covey/adapters  /covey/sleep  /covey/wake
PUT    /covey/uploads/NAME/FILE?sha256=...
DELETE /covey/adapters?name=NAME
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from covey.errors import ConfigError
from covey.sample.remote.listener import Exchange, Gone, Listener
from covey.sample.remote.served_policy import ServedPolicy
from covey.sample.remote.served_queue import Job, ServedQueue
from covey.sample.remote.server import Drawn
from covey.sample.remote.upload_store import Status, UploadStore, seen_folder
from covey.sample.remote.wire import DrawBody, FilesBody, ScoreBody, SleepBody, read_as, read_json
from covey.text.foreign import excerpt

ROUTES = frozenset(
    (
        "/health", "/metrics", "/covey/facts", "/covey/label", "/covey/progress", "/covey/draw", "/covey/logprobs",
        "/covey/weights", "/covey/adapters", "/covey/sleep", "/covey/wake",
    )
)  # fmt: skip
"""Those that are counted by name."""

KEPT_UPLOADS = 3
"""Folders that are being sent, or wait to be used."""

SMALL_FILES = 64 << 20
"""Bytes of an upload beside twice those of the policy: configs, an adapter."""

LOOKS = 0.25
"""Seconds between two looks whether a client still waits."""


class CoveyHTTPServer(Listener):
    """`covey serve` on an address; see `Listener`.

    Args:
        policy: what is served.
        together: see `ServedQueue`.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        host: str = "127.0.0.1",
        port: int = 0,
        together: bool = False,
        token: str | None = None,
    ) -> None:
        self.policy, self.queue = policy, ServedQueue(policy, together)
        self.requests = Counter[tuple[str, int]]()
        uploads = UploadStore(None, KEPT_UPLOADS, 2 * policy.bytes + SMALL_FILES)
        super().__init__(_Routes, uploads, host, port, token)

    def server_close(self) -> None:
        """Serve nothing any more, and remove what was sent."""
        super().server_close()
        self.queue.close()

    def metrics(self) -> str:
        """Return what a Prometheus server reads."""
        policy, queue, counts = self.policy, self.queue, self.policy.counts.copy()
        lines = ["# TYPE covey_requests_total counter"]
        for (route, status), number in sorted(self.requests.copy().items()):
            lines.append(f'covey_requests_total{{route="{route}",status="{status}"}} {number}')
        for name, kind, value in (
            ("generation_tokens_total", "counter", policy.engine.counts["drawn"]),
            ("prompt_tokens_total", "counter", counts["prompt_tokens"]),
            ("completions_total", "counter", counts["completions"]),
            ("weight_updates_total", "counter", counts["updates"]),
            ("adapters", "gauge", len(policy.adapters)),
            ("requests_waiting", "gauge", len(queue.waiting)),
            ("busy", "gauge", int(queue.is_busy)),
            ("asleep", "gauge", int(policy.is_asleep)),
        ):
            lines += [f"# TYPE covey_{name} {kind}", f"covey_{name} {value}"]
        return "\n".join(lines) + "\n"


class _Routes(Exchange):
    server: CoveyHTTPServer

    def answer(self, route: str, query: Mapping[str, str]) -> tuple[int, object]:
        """Return the answer to a request: an object of JSON, or text."""
        policy, queue = self.server.policy, self.server.queue
        match self.command, route:
            case "POST", _ if route in ROUTES:
                return 200, self._done(route)
            case "GET", "/health":
                if not queue.thread.is_alive() or queue.is_over:
                    raise Status(503, "The server is ending.")
                return 200, {"status": "asleep" if policy.is_asleep else "ok"}
            case "GET", "/metrics":
                return 200, self.server.metrics()
            case "GET", "/covey/facts":
                return 200, asdict(policy.facts())
            case "GET", "/covey/label":
                return 200, {"label": policy.label}
            case "GET", "/covey/progress":
                return 200, {"tokens": policy.engine.counts["drawn"]}
            case "DELETE", "/covey/adapters":
                return 200, self._waited(Job(lambda: policy.remove_adapter(query.get("name", "")))) or {}
            case "PUT", _ if route.startswith("/covey/uploads/"):
                path, digest = route.removeprefix("/covey/uploads/"), query.get("sha256", "")
                self.server.uploads.take(path, digest, self.unread, self.read)
                return 200, {"sha256": digest.lower()}
        said = f"There is no {self.command} {excerpt(route, 200)}. docs/engines.md lists what there is."
        raise Status(404, said)

    def _done(self, route: str) -> object:
        """Do what a POST asks for, and return the answer."""
        policy, body = self.server.policy, read_json(self.body() or b"{}")
        match route:
            case "/covey/draw":
                draw = read_as(DrawBody, body)
                policy.check(draw)
                drawn, label = self._waited(Job(draw))
                names = [field.name for field in fields(Drawn)]
                return {"completions": [{n: getattr(one, n) for n in names} for one in drawn], "label": label}
            case "/covey/logprobs":
                text = read_as(ScoreBody, body)
                return {"logprobs": self._waited(Job(lambda: policy.score(text), passes_draws=True))}
            case "/covey/weights":
                files = read_as(FilesBody, body)
                self._take(files, policy.update, files.in_flight)
            case "/covey/adapters":
                self._take(read_as(FilesBody, body), policy.add_adapter, passes_draws=True)
            case "/covey/sleep":
                depth = read_as(SleepBody, body)
                self._waited(Job(lambda: policy.sleep(depth.keeps_weights)))
            case "/covey/wake":
                self._waited(Job(policy.wake))
            case _:
                raise Status(405, f"{route} is asked with GET.")
        return {}

    def _take(self, files: FilesBody, take: Callable[[Path, str], None], passes_draws: bool) -> None:
        """Have the policy take files; those that were sent for it are deleted then."""
        folder = self._folder(files)
        self._waited(Job(lambda: take(folder, files.label), passes_draws))
        if files.upload is not None:
            self.server.uploads.drop(files.upload)

    def _waited(self, job: Job) -> Any:
        """Return what a job comes to, unless the client has gone."""
        self.server.queue.put(job)
        while not job.done.wait(LOOKS):
            if self.has_gone():
                job.is_given_up = True
                raise Gone
        if job.error is not None:
            raise job.error
        return job.result

    def _folder(self, files: FilesBody) -> Path:
        """Return the folder that a request names."""
        if (files.folder is None) == (files.upload is None):
            raise ConfigError("Give one of folder and upload.")
        if not files.label or len(files.label) > 500:
            raise ConfigError(
                "label is empty or longer than 500 characters. It tells these weights from all others."
            )
        if files.upload is None:
            return seen_folder(files.folder or "", files.sizes or {})
        sent = self.server.uploads.folders.get(files.upload)
        if sent is None:
            raise ConfigError(
                f"Nothing was sent under the name {excerpt(files.upload, 80)!r}, or it was too long ago."
            )
        return sent

    def send(self, status: int, answer: object) -> None:
        """Send an answer, and count it."""
        route = self.path.partition("?")[0]
        self.server.requests[route if route in ROUTES else "other", status] += 1
        super().send(status, answer)
