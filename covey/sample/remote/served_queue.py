"""The one thread of `covey serve` that touches the policy: requests wait for it in the order in which they come.

What a request gets depends on nothing beside it: on a CPU each is decoded by itself, so that not even the rounding of sums shows
what else was waiting. Where batches are cut together, log-probabilities differ by rounding from one time to another.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from covey.errors import CoveyError, EngineError, ServerLost
from covey.sample.remote.served_policy import AT_ONCE, ServedPolicy, refuse_garbage
from covey.sample.remote.wire import DrawBody
from covey.text.foreign import excerpt, fit, show

OVER = "The server is ending. Send the request to another one, or again once it is there."


class Job:
    """A request that waits, or is being served.

    Args:
        work: what is to be drawn, or a call.
        passes_draws: it is served before draws that wait.
    """

    def __init__(self, work: DrawBody | Callable[[], object], passes_draws: bool = False) -> None:
        self.work, self.passes_draws = work, passes_draws
        self.result: Any = None
        self.error: CoveyError | None = None
        self.done = threading.Event()
        self.is_given_up = False
        """The client has gone: it is not begun."""

    def end(self, result: object = None, error: BaseException | None = None) -> None:
        """Note how it ended. An error of ours becomes one that says so, and its place goes to standard error."""
        if error is not None and not isinstance(error, CoveyError):
            show(fit("".join(traceback.format_exception(error))), sys.stderr)
            what = f"{type(error).__name__}: {excerpt(str(error), 400)}"
            error = EngineError(f"The server could not do it: {what}. Its own output says where.")
        self.result, self.error = result, error
        self.done.set()


class ServedQueue:
    """Serves jobs one after another, in a thread of its own.

    Args:
        policy: is touched by that thread alone.
        together: decode requests that wait in one batch, rather than each by itself.
    """

    def __init__(self, policy: ServedPolicy, together: bool) -> None:
        self.policy, self.together = policy, together
        self.waiting: deque[Job] = deque()
        self.changed, self.is_over, self.is_busy = threading.Condition(), False, False
        self.thread = threading.Thread(target=self._serve, name="covey-serve", daemon=True)
        self.thread.start()

    def put(self, job: Job) -> None:
        """Have a job wait.

        Raises:
            ServerLost: the server ends.
        """
        with self.changed:
            if self.is_over:
                raise ServerLost(OVER)
            behind = len(self.waiting)
            while job.passes_draws and behind and isinstance(self.waiting[behind - 1].work, DrawBody):
                behind -= 1
            self.waiting.insert(behind, job)
            self.changed.notify()

    def close(self) -> None:
        """Serve no more: what waits is given back. What is drawn now ends with its next group."""
        with self.changed:
            self.is_over, left = True, list(self.waiting)
            self.waiting.clear()
            self.changed.notify()
        for job in left:
            job.end(error=ServerLost(OVER))

    def _serve(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.is_over)
                if self.is_over:
                    return
                jobs, self.is_busy = self._next(), True
            try:
                self._do(jobs)
            except BaseException as error:  # the thread's boundary: a job that cannot be done is answered, and the next one served
                for job in jobs:
                    if not job.done.is_set():
                        job.end(error=error)
            self.is_busy = False

    def _next(self) -> list[Job]:
        """Take the next job, with those right behind it that one call of the engine draws."""
        jobs = [self.waiting.popleft()]
        first = jobs[0].work
        while self.together and self.waiting and isinstance(first, DrawBody):
            work = self.waiting[0].work
            is_alike = isinstance(work, DrawBody) and all(
                getattr(work, name) == getattr(first, name)
                for name in ("settings", "count", "adapter", "keep_special")
            )
            if not is_alike or first.count * (len(jobs) + 1) > AT_ONCE:
                break
            jobs.append(self.waiting.popleft())
        return [job for job in jobs if not job.is_given_up]

    def _do(self, jobs: list[Job]) -> None:
        draws = [job.work for job in jobs if isinstance(job.work, DrawBody)]
        if jobs and not draws and not isinstance(jobs[0].work, DrawBody):
            jobs[0].end(jobs[0].work())
        for position, drawn in self.policy.draw(draws) if draws else ():
            try:
                for one in drawn:
                    refuse_garbage(torch.tensor([*one.logprobs, *(one.policy_logprobs or ())]))
                jobs[position].end((drawn, self.policy.label))
            except EngineError as error:
                jobs[position].end(error=error)
            if self.is_over:
                raise ServerLost(OVER)
