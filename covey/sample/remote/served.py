"""`covey serve` as a run speaks to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote

from covey.errors import EngineError, ServerLost
from covey.sample.remote.client import Client, Refused, Terms
from covey.sample.remote.server import Drawn, DrawRequest, ServerFacts, ServerKind, reads_answers
from covey.sample.remote.strangers import refuse_stranger
from covey.sample.remote.uploads import send_folder, sent_files
from covey.sample.remote.wire import body_of, read_as

HEALTH_SECONDS = 5.0

START = "covey serve MODEL"
"""Command by which a server is started."""


class CoveyServer:
    """A server that `covey serve` runs; see `covey.sample.remote.server.Server` for the contract.

    Args:
        client: where it is.
        keep_special: whether special tokens are part of the text in which stop strings are looked for.
    """

    kind: ServerKind = "covey"
    gives_policy_logprobs = swaps_in_flight = True

    def __init__(self, client: Client, keep_special: bool = False) -> None:
        self.client, self.url, self.keep_special = client, client.url, keep_special

    @reads_answers
    def facts(self) -> ServerFacts:
        """Ask what it is."""
        said = self._ask_first("/covey/facts")
        try:
            return ServerFacts(**said)
        except TypeError as error:
            raise EngineError(
                f"{self.url} is no server of covey serve that this version knows: {error}"
            ) from error

    @reads_answers
    def draw(self, request: DrawRequest) -> list[Drawn]:
        """Draw completions, in the order of their indices."""
        said = self._ask("POST", "/covey/draw", body_of(request, self.keep_special), progress=self.progress)
        try:
            drawn = [read_as(Drawn, one, f"completions[{n}]") for n, one in enumerate(said["completions"])]
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self.url}/covey/draw answered what is no list of completions: {error}"
            ) from error
        for one in drawn:
            several = {len(x) for x in (one.ids, one.logprobs, one.policy_logprobs) if x is not None}
            if len(several) != 1 or not one.ids:
                raise EngineError(
                    f"{self.url}/covey/draw answered {len(one.ids)} ids with other numbers of log-probabilities."
                )
        if len(drawn) != request.count:
            raise EngineError(
                f"{self.url}/covey/draw answered {len(drawn)} completions; {request.count} were asked for."
            )
        return drawn

    @reads_answers
    def prompt_logprobs(self, ids: Sequence[int], adapter: str | None = None) -> list[float]:
        """Return the log-probability of each id but the first, after those before it, at temperature 1."""
        said = self._ask("POST", "/covey/logprobs", {"ids": list(ids), "adapter": adapter})
        logprobs = [float(x) for x in said["logprobs"]]
        if len(logprobs) != len(ids) - 1:
            raise EngineError(
                f"{self.url} gave {len(logprobs)} log-probabilities for a prompt of {len(ids)} tokens."
            )
        return logprobs

    @reads_answers
    def label(self) -> str:
        """Return the label of the weights that it serves; `UNLABELLED` after its start."""
        return str(self._ask_first("/covey/label")["label"])

    @reads_answers
    def update(self, folder: Path, label: str) -> None:
        """Have it serve the weights in a folder; they are sent where it does not see that folder."""
        self._take("/covey/weights", folder, label)

    @reads_answers
    def swap(self, folder: Path, label: str) -> None:
        """Have it serve the weights in a folder before the requests that wait: it changes them between two requests."""
        self._take("/covey/weights", folder, label, in_flight=True)

    @reads_answers
    def load_adapter(self, name: str, folder: Path) -> None:
        """Have it hold an adapter beside its weights; the files are sent where it does not see that folder."""
        self._take("/covey/adapters", folder, name)

    def unload_adapter(self, name: str) -> None:
        """Have it forget an adapter."""
        self._ask("DELETE", f"/covey/adapters?name={quote(name, safe='')}")

    def sleep(self, keeps_weights: bool) -> None:
        """Have it give back the memory of its cache, and of its weights unless they are to be kept."""
        self._ask("POST", "/covey/sleep", {"keeps_weights": keeps_weights})

    def wake(self) -> None:
        """Have it take its memory back."""
        self._ask("POST", "/covey/wake", {})

    @reads_answers
    def progress(self) -> int | None:
        """Return how many tokens it has drawn since its start."""
        return int(self._ask("GET", "/covey/progress", seconds=HEALTH_SECONDS)["tokens"])

    def is_alive(self) -> bool:
        """Return whether it answers at once."""
        try:
            self._ask("GET", "/health", seconds=HEALTH_SECONDS)
        except EngineError:
            return False
        return True

    def _take(self, route: str, folder: Path, label: str, in_flight: bool = False) -> None:
        """Have it read files: where they are, or else as they are sent."""
        body = {"label": label, "in_flight": in_flight}
        try:
            self._ask("POST", route, {**body, "folder": str(folder), "sizes": sent_files(folder)})
        except Refused as error:
            if error.status != 404:
                raise
            upload, _ = send_folder(self.client, folder)
            self._ask("POST", route, {**body, "upload": upload})

    def _ask_first(self, route: str) -> Any:
        """Ask what may be asked before it is known that the server is one of `covey serve`."""
        try:
            return self._ask("GET", route)
        except ServerLost:
            raise
        except EngineError:
            refuse_stranger(self.client, self.kind, START)
            raise

    def _ask(self, method: str, route: str, body: object = None, **terms: Unpack[Terms]) -> Any:
        said = self.client.ask(method, route, body, **terms)
        if not isinstance(said, dict):
            raise EngineError(f"{self.url}{route} answered with no object; it is no server of covey serve.")
        return said
