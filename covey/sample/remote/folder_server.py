"""The part that clients of vLLM and SGLang have in common: both programs read weights from folders, and say the same of routes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.errors import EngineError, ServerLost
from covey.sample.remote.client import Client, Refused
from covey.sample.remote.publish import MANIFEST
from covey.sample.remote.server import UNLABELLED, Drawn, reads_answers
from covey.sample.sampling import Sampling
from covey.sample.turns import TurnEnd

NEVER = -100.0
"""Bias of a logit with which an id is not drawn; vLLM takes none that is lower."""


class FolderServer:
    """A server that reads weights from folders, and what is known here of the ones that it has read.

    Args:
        url: scheme, host and port.
        timeout: seconds of a call, or without a new token.
    """

    counter: str
    """Metric that counts drawn tokens."""

    def __init__(self, url: str, timeout: float = 240.0) -> None:
        self.client = Client(url, timeout)
        self.url = self.client.url
        self.model = self.root = ""
        """The name under which it serves its own weights, and where it read them when it started."""
        self.told = UNLABELLED
        """The label as it was last told or read."""
        self._applied: list[Path] = []
        """Folders that make up the weights which it serves: a whole one, and parts that came after it."""
        self._has_no_cache = False
        """Whether its memory for keys and values is still given back."""

    def _read(self, folder: Path, label: str) -> None:
        """Have it read the weights of a folder.

        Raises:
            Refused: it did not.
        """
        raise NotImplementedError

    def _reload(self, folder: Path, label: str) -> None:
        """Have it read a folder; where it refuses that, those of before: without weights the next request could end it.

        Raises:
            EngineError: it refuses the folder, and serves the weights of before again.
            ServerLost: it has no weights now.
        """
        try:
            self._read(folder, label)
        except Refused as refused:
            before = self._applied or [Path(self.root)]
            if self._applied and not all(path.exists() for path in before):
                raise ServerLost(
                    f"{refused} The weights of before are gone from the disk: it has none."
                ) from refused
            try:
                for path in before:
                    self._read(path, self.told)
            except EngineError as error:
                raise ServerLost(
                    f"{refused} Those of before it refuses too, so it has none: {error}"
                ) from refused
            raise EngineError(f"{refused} It serves the weights of before again.") from refused
        manifest = folder / MANIFEST
        is_part = manifest.exists() and bool(json.loads(manifest.read_text(encoding="utf-8")).get("is_part"))
        self._applied = [*(self._applied or [Path(self.root)]), folder] if is_part else [folder]

    def _ended(
        self, reason: str | None, ids: Sequence[int], logprobs: Sequence[float | None], ends: Sequence[int]
    ) -> Drawn:
        """Return a completion that a reason of OpenAI's kind has ended.

        Raises:
            ServerLost: it was cut off from outside; the status is 200 all the same.
        """
        if reason not in ("stop", "length"):
            raise ServerLost(f"{self.url} ended a completion with {reason!r}: the request was aborted there.")
        end: TurnEnd = "stop_string" if reason == "stop" else "length"
        numbers = tuple(math.nan if p is None else float(p) for p in logprobs)
        return Drawn(tuple(ids), numbers, "stop" if ids and ids[-1] in ends else end)

    def is_alive(self) -> bool:
        """Return whether it answers at once."""
        try:
            self.client.text("GET", "/health", seconds=5.0, repeats=False)
        except EngineError:
            return False
        return True

    @reads_answers
    def progress(self) -> int | None:
        """Return how many tokens it has drawn since its start; None: it does not say."""
        count = self._metric(self.counter)
        return None if count is None else int(float(count))

    def _metric(self, name: str) -> str | None:
        """Return the sum of a counter over the engines of the server, as text; None: there is none."""
        try:
            page = self.client.text("GET", "/metrics", seconds=10.0, repeats=False)
        except Refused:
            return None
        values = [
            line.rsplit(" ", 1)[1] for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name
        ]
        return repr(math.fsum(map(float, values))) if values else None

    def _has(self, route: str) -> bool:
        """Return whether there is a route that is posted to."""
        try:
            self.client.text("GET", route, seconds=10.0)
        except Refused as error:
            return error.status != 404
        return True

    def _optional(self, route: str) -> Any:
        """Return the answer of a route that not every release has; None where it has not."""
        try:
            return self.client.ask("GET", route)
        except Refused as error:
            if error.status in (404, 405):
                return None
            raise


def options_of(settings: Sampling, bias: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the options of drawing that both programs know, under their names; `bias` is added to logits besides."""
    biases = {**(bias or {}), **{str(i): NEVER for i in sorted(settings.never_drawn)}}
    return {
        "temperature": 0.0 if settings.greedy else settings.temperature,
        "top_p": settings.top_p,
        "min_p": settings.min_p,
        "repetition_penalty": settings.repetition_penalty,
        "stop_token_ids": list(settings.stop_ids),
        "ignore_eos": True,  # the ids above are all that end a completion
        "skip_special_tokens": False,
        **({"stop": list(settings.stop_strings)} if settings.stop_strings else {}),
        **({"logit_bias": biases} if biases else {}),
    }
