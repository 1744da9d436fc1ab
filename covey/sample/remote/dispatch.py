"""Requests of a round on their way: each is drawn once, by whichever server is free, however often it has to be sent.

Threads only draw. A request is waiting, running, or answered; one that is lost waits again, in front of the others.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from covey.errors import EngineError, ServerLost
from covey.sample.remote.post import Post
from covey.sample.remote.server import Drawn, DrawRequest

MOST_OPEN = 128
"""Requests that are open on one server at most: as many as make it busy."""

MOST_LOSSES = 8
"""Times that one request may be lost on servers that answer otherwise: it may be what ends them."""

Check = Callable[[Post, DrawRequest, Sequence[Drawn]], None]
"""Raises an EngineError for an answer that is none."""


@dataclass(eq=False, slots=True)
class _Job:
    row: int
    request: DrawRequest
    losses: int = 0
    post: Post | None = None
    """Where it runs; None: nowhere."""


class Dispatch:
    """The requests of one round.

    Args:
        posts: the servers.
        timeout: seconds without any server after which the round is given up.
        check: raises for a wrong answer.
        revive: starts a server again that is a child and has died.
    """

    def __init__(
        self, posts: Sequence[Post], timeout: float, check: Check, revive: Callable[[Post], None]
    ) -> None:
        self.posts, self.timeout, self.check, self.revive = posts, timeout, check, revive
        self._waiting = deque[_Job]()
        self._running = dict[_Job, int]()
        """Jobs that run → which of their runs it is."""
        self._answers: queue.Queue[tuple[int, list[Drawn]] | BaseException] = queue.Queue()
        self._changed = threading.Condition()
        self._threads = self._idle = self._runs = 0
        self._is_closed = False
        self.retries = 0
        """Requests that were sent again."""
        self._start(self._watch)

    def send(self, row: int, request: DrawRequest) -> None:
        """Have a request drawn; its answer is told by the row."""
        with self._changed:
            self._waiting.append(_Job(row, request))
            if self._idle < len(self._waiting) and self._threads < MOST_OPEN * len(self.posts):
                self._threads += 1
                self._start(self._work)
            self._changed.notify()

    def next(self, seconds: float | None) -> tuple[int, list[Drawn]] | None:
        """Return the next answer with its row; None where none came in so many seconds.

        Raises:
            EngineError: a server refuses or answers wrongly, or no server is left.
        """
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """Send nothing more; who still waits for answers gets an EngineError."""
        with self._changed:
            self._fail(EngineError("The engine was closed while it sampled."))
            self._changed.notify_all()

    def wait(self) -> None:
        """Return once nothing runs any more: whatever hangs is given up."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_busy)

    @property
    def is_busy(self) -> bool:
        return bool(self._running or self._waiting)

    # --- in threads ---------------------------------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="covey-engine", daemon=True).start()

    def _work(self) -> None:
        """Draw, one job after another, until the round is over."""
        while (taken := self._take()) is not None:
            job, post, run = taken
            is_sent = False
            try:
                if post.is_down:
                    self.revive(post)
                mark = post.mark()
                self._is_back(post)
                is_sent = True
                drawn = post.draw(job.request, mark)
                self.check(post, job.request, drawn)
                outcome: list[Drawn] | BaseException = drawn
            except BaseException as error:  # told to the thread that waits for the answers
                outcome = error
            if not self._settle(job, post, run, outcome, is_sent):
                return

    def _take(self) -> tuple[_Job, Post, int] | None:
        """Return a job and a server for it, once there are both; None: the round is over."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                free = [p for p in self.posts if _is_free(p, now)]
                if self._waiting and free:
                    return self._run(self._waiting.popleft(), min(free, key=lambda p: p.number_open), now)
                due = [p.retry_at - now for p in self.posts if p.is_down and not p.is_tried]
                self._idle += 1
                self._changed.wait(max(min(due), 0.001) if due and self._waiting else None)
                self._idle -= 1
            self._threads -= 1
            return None

    def _run(self, job: _Job, post: Post, now: float) -> tuple[_Job, Post, int]:
        post.is_tried = post.is_down
        post.answered = post.answered if post.number_open else now
        post.number_open += 1
        self._runs += 1
        self._running[job], job.post = self._runs, post
        return job, post, self._runs

    def _is_back(self, post: Post) -> None:
        with self._changed:
            post.is_down = post.is_tried = False
            self._changed.notify_all()

    def _settle(
        self, job: _Job, post: Post, run: int, outcome: list[Drawn] | BaseException, is_sent: bool
    ) -> bool:
        """Take in what a run came to; returns False where it had been given up, and another thread has its place."""
        with self._changed:
            if self._running.get(job) != run:
                return False
            self._release(job, post)
            if isinstance(outcome, ServerLost):
                self._lose(job, post, outcome, is_sent)
            elif isinstance(outcome, BaseException):
                self._fail(outcome)
            else:
                post.has_drawn(outcome)
                self._answers.put((job.row, outcome))
            self._changed.notify_all()
        return True

    def _release(self, job: _Job, post: Post) -> None:
        del self._running[job]
        job.post = None
        post.number_open -= 1

    def _fail(self, error: BaseException) -> None:
        """End the round."""
        self._answers.put(error)
        self._is_closed = True
        self._waiting.clear()

    def _lose(self, job: _Job, post: Post, error: ServerLost, is_sent: bool) -> None:
        """Have a job sent again, or give the round up."""
        now = time.monotonic()
        post.lose(str(error), now)
        job.losses += is_sent
        self.retries += is_sent
        states = "\n".join(p.state(now) for p in self.posts)
        if all(p.failing_since is not None and now - p.failing_since >= self.timeout for p in self.posts):
            text = f"No server has drawn anything for {self.timeout:g} seconds:\n{states}\nStart one, and resume the run."
            self._fail(EngineError(text))
        elif job.losses >= MOST_LOSSES:
            text = (
                f"Prompt row {job.request.prompt.row} was lost {job.losses} times on servers that answer otherwise, last so: "
                f"{error}\n{states}\nLook into the log of the server: this prompt may be what ends it."
            )
            self._fail(EngineError(text))
        elif not self._is_closed:
            self._waiting.appendleft(job)

    def _watch(self) -> None:
        """Give up the calls of servers that hang: no answer, no new token."""
        while not self._is_closed or self.is_busy:
            time.sleep(min(0.05, self.timeout / 8))
            for post in self.posts:
                try:
                    post.watch()
                except ServerLost as error:
                    self._give_up(post, error)

    def _give_up(self, post: Post, error: ServerLost) -> None:
        """Send the jobs of a server again; threads that are held there are replaced."""
        with self._changed:
            post.hangs = True
            for job in [job for job in self._running if job.post is post]:
                self._release(job, post)
                self._lose(job, post, error, is_sent=True)
                self._start(self._work)
            self._changed.notify_all()


def _is_free(post: Post, now: float) -> bool:
    """Return whether a server may be asked now; one that was lost is tried by one thread."""
    if post.is_down:
        return not post.is_tried and post.retry_at <= now
    return post.number_open < MOST_OPEN
