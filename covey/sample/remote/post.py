"""One server as the engine sees it: what it serves, what it is busy with, and whether it can be asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from covey.errors import EngineError, ServerLost
from covey.sample.remote.client import Standstill
from covey.sample.remote.labels import are_same_weights, described, read_label
from covey.sample.remote.server import UNLABELLED, Drawn, DrawRequest, Server
from covey.text.foreign import excerpt

FIRST_DELAY, LAST_DELAY = 0.05, 10.0
"""Seconds until a lost server is asked again: at first, and at most. Each time twice as many."""

SLACK = 1.25
"""Times the time-out after which a call that does not come back is given up: its own deadline comes first."""


class Post:
    """One server of an engine. Threads share it; its lock is held while the label is read.

    Args:
        server: answers.
        timeout: seconds without a new token after which it counts as hung.
        serve_again: returns the label under which the server, restarted, serves the weights again.
    """

    def __init__(self, server: Server, timeout: float, serve_again: Callable[[Server], str]) -> None:
        self.server, self.timeout, self.serve_again = server, timeout, serve_again
        self.still = Standstill(timeout * SLACK)
        self.labels: tuple[str, ...] = (UNLABELLED,)
        """What it may serve: the last push; while weights change under requests, that and the one before."""
        self._next: dict[str, str] = {}
        """Labels as they were read before weights changed under requests → those after it."""
        self._mark, self._read_at = UNLABELLED, float("-inf")
        """Its label as it was last read, and when that reading began."""
        self._lock = threading.Lock()
        self.number_open = 0
        self.answered = time.monotonic()
        """When an answer last came, or a request was sent while none was open."""
        self.failing_since: float | None = None
        """When it was first lost since it last drew something; None: it draws."""
        self.is_down = False
        """Whether it was lost and has told nothing since."""
        self.is_tried = False
        """Whether a thread finds out whether it is back."""
        self.retry_at, self.delay = 0.0, FIRST_DELAY
        self.hangs = False
        """Whether it was given up because no token came."""
        self.trouble = ""
        """What was last wrong with it."""
        self.tokens = self.losses = 0
        """Tokens that were taken from it, and requests that were lost on it, in this round."""

    def serve(self, label: str) -> None:
        """Note that it has to serve a push from now on."""
        self.labels, self._read_at = (label,), float("-inf")

    def swap(self, label: str) -> None:
        """Note that weights are about to change under its requests: what began under the present label may end under this one."""
        try:
            self._next[self.mark(time.monotonic())] = label
        except ServerLost as error:  # what is drawn there now counts as lost
            self.trouble = str(error)
        self.labels = (*self.labels, label)

    def start_round(self) -> None:
        """Count anew, and read the label before the first request."""
        self._read_at = float("-inf")
        self.tokens = self.losses = 0
        self.failing_since, self.is_down, self.is_tried = None, False, False
        self.retry_at, self.delay = 0.0, FIRST_DELAY

    def mark(self, since: float = float("-inf")) -> str:
        """Return the label that it serves, read after the time `since`; where it was restarted, the weights are sent to it again.

        Raises:
            ServerLost: it does not answer.
            EngineError: it serves the weights of another run.
        """
        with self._lock:
            if self._read_at <= since:
                began = time.monotonic()
                mark = self.server.label()
                if not any(are_same_weights(mark, label) for label in self.labels):
                    self._refuse_foreign(mark)
                    mark = self.serve_again(self.server)
                self._mark, self._read_at = mark, began
            return self._mark

    def draw(self, request: DrawRequest, mark: str) -> list[Drawn]:
        """Draw under a label that was read before; an answer of weights that do not follow on those is none.

        Returns:
            The completions, with the label of the oldest weights that they were drawn with.

        Raises:
            ServerLost: it is gone, or was restarted since.
            EngineError: it refuses, or serves the weights of another run.
        """
        drawn = self.server.draw(request)
        after, passed = self.mark(time.monotonic()), [mark]
        while passed[-1] != after and passed[-1] in self._next:
            passed.append(self._next[passed[-1]])
        if passed[-1] != after or any(one.label not in (None, *passed) for one in drawn):
            raise ServerLost(f"{self.server.url} was started again while it drew.")
        return [replace(one, label=one.label or mark) for one in drawn]

    def lose(self, trouble: str, now: float) -> None:
        """Note that it cannot be asked for a while."""
        self.losses += 1
        self.trouble, self._read_at = trouble, float("-inf")
        self.is_down, self.is_tried = True, False
        self.failing_since = now if self.failing_since is None else self.failing_since
        if self.retry_at <= now:  # many requests are lost at once
            self.retry_at = now + self.delay
            self.delay = min(2 * self.delay, LAST_DELAY, max(self.timeout / 8, FIRST_DELAY))

    def state(self, now: float) -> str:
        """Return how it is, for people."""
        opened = f"{self.number_open} requests open"
        if self.failing_since is None:
            return f"{self.server.url}: draws, {opened}"
        seconds = now - self.failing_since
        return f"{self.server.url}: draws nothing for {seconds:.0f} seconds, {opened}; {excerpt(self.trouble, 500)}"

    def watch(self) -> None:
        """Look whether tokens come where no answer has for long.

        Raises:
            ServerLost: it hangs.
        """
        if (
            self.number_open
            and not self.is_tried
            and time.monotonic() - self.answered >= self.still.timeout / 2
        ):
            self.still.look(self.server.url, self.answered, self.server.progress)
            if self.failing_since is not None and self.still.last > self.failing_since:
                self.failing_since = None

    def has_drawn(self, drawn: Sequence[Drawn]) -> None:
        """Count what it has drawn."""
        self.answered, self.delay, self.failing_since = time.monotonic(), FIRST_DELAY, None
        self.tokens += sum(len(one.ids) for one in drawn)

    def _refuse_foreign(self, mark: str) -> None:
        """Raise an EngineError for weights that are not of this run."""
        ours, found = read_label(self.labels[-1]), read_label(mark)
        if mark == UNLABELLED or (ours is not None and found is not None and found.run == ours.run):
            return
        raise EngineError(
            f"{self.server.url} serves {described(mark)}; this run has pushed {described(self.labels[-1])}. Two runs cannot share a "
            "server: end the other one, or give each its own engine_urls. Nothing that was drawn there since is used."
        )
