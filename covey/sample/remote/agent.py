"""A parent of vLLM on a machine where no trainer is: starts it again, and takes weights that are sent.

All of vLLM's routes are passed on. Beside them:

    GET  /covey/agent                        {"kind", "starts", "is_running", "log"}
    POST /covey/folder {folder, sizes}       its path where this machine sees the trainer's folder, else 404
    PUT  /covey/uploads/NAME/FILE?sha256=    a file of weights, into memory of this machine; answers with the folder it lies in
    DELETE /covey/uploads/NAME               what was sent is not needed any more
    GET  /weight_info, POST /update_weight_version      kept here where this vLLM has no labels: a start forgets them
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from contextlib import closing
from multiprocessing.connection import wait

from covey.sample.remote.launch import ChildServer
from covey.sample.remote.listener import Exchange, Gone, Listener
from covey.sample.remote.owned_folder import TMPFS
from covey.sample.remote.server import UNLABELLED
from covey.sample.remote.upload_store import Status, UploadStore, seen_folder
from covey.sample.remote.uploads import UPLOADS
from covey.sample.remote.wire import FolderBody, read_as, read_json
from covey.text.foreign import excerpt, fit

KEPT_UPLOADS = 16
"""Folders that were sent, at most: of a run that was killed nobody deletes them."""


class Agent(Listener):
    """A server of one vLLM, which it starts and keeps; see `Listener`.

    Args:
        child: the vLLM.
        restarts: times that it is started again at most.
    """

    def __init__(
        self, child: ChildServer, restarts: int, host: str, port: int, token: str | None = None
    ) -> None:
        self.child, self.restarts = child, restarts
        self.label = UNLABELLED, 0
        """What was last said of weights, where vLLM keeps no labels, and during which start of it."""
        uploads = UploadStore(TMPFS if TMPFS.is_dir() else None, KEPT_UPLOADS)
        super().__init__(_Passing, uploads, host, port, token)

    def keep(self, ended: threading.Event) -> None:
        """Serve until `ended` is set; start vLLM again whenever it dies.

        Raises:
            EngineError: it does not start, or dies too often.
        """
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            self.child.start()
            while not ended.wait(0.5):
                if not self.child.is_running:
                    if self.child.starts > self.restarts:
                        raise self.child.failure(f"died, after it was started {self.child.starts} times")
                    self.child.start()
        finally:
            self.shutdown()
            self.child.stop()
            self.server_close()


class _Passing(Exchange):
    """Passes requests on to vLLM."""

    server: Agent

    def answer(self, route: str, query: Mapping[str, str]) -> tuple[int, object]:
        """Return vLLM's answer, or the agent's own."""
        self.close_connection = True
        if route.startswith("/covey/"):
            return 200, self._own(route, query)
        body = self.body()
        status, answer = self._pass_on(body)
        if status == 404 and route in ("/weight_info", "/update_weight_version"):
            return 200, self._label(body)
        return status, answer

    def _own(self, route: str, query: Mapping[str, str]) -> object:
        """Answer on one of the agent's own routes."""
        child, uploads, path = self.server.child, self.server.uploads, route.removeprefix(f"{UPLOADS}/")
        match self.command, route:
            case "GET", "/covey/agent":
                facts = {"kind": "vllm", "starts": child.starts, "is_running": child.is_running}
                return {**facts, "log": fit(child.tail())}
            case "POST", "/covey/folder":
                asked = read_as(FolderBody, read_json(self.body()))
                return {"folder": str(seen_folder(asked.folder, asked.sizes))}
            case "DELETE", _ if path != route:
                uploads.drop(path)
                return {}
            case "PUT", _ if path != route:
                digest = query.get("sha256", "")
                folder = uploads.take(path, digest, self.unread, self.read)
                return {"sha256": digest.lower(), "folder": str(folder)}
        raise Status(404, f"There is no {self.command} {excerpt(route, 200)}.")

    def _pass_on(self, body: bytes) -> tuple[int, bytes]:
        """Return vLLM's answer. Where the client goes away, so does the request: vLLM ends it."""
        child = self.server.child
        kept = {n: text for n, text in self.headers.items() if n.lower() in ("content-type", "accept")}
        with closing(http.client.HTTPConnection("127.0.0.1", int(child.url.rpartition(":")[2]))) as upstream:
            try:
                upstream.request(self.command, self.path, body or None, kept)
                while upstream.sock not in wait([upstream.sock, self.connection], 5.0):
                    if self.has_gone():
                        raise Gone
                    if not child.is_running:
                        raise ConnectionError("it ended")
                answer = upstream.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                is_up = child.is_running and child.starts > 0
                state = f"does not answer ({error})" if is_up else "is starting"
                start = f"start {child.starts} of {self.server.restarts + 1}"
                said = f"The vLLM of this agent {state}, {start}. Its log ends with:\n{child.tail(20)}"
                raise Status(503, fit(said)) from error

    def _label(self, body: bytes) -> object:
        """Answer for a vLLM that has no labels."""
        server, starts = self.server, self.server.child.starts
        if self.command == "POST":
            server.label = str(json.loads(body)["new_version"]), starts
        label, since = server.label
        return {"weight_version": label if since == starts else UNLABELLED}
