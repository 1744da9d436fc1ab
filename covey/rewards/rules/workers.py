"""Worker processes for our own functions that hostile text can keep busy for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from covey.rewards.sandbox.session import CallFailed, Session
from covey.rewards.sandbox.trusted import trusted_child

MEMORY_MB = 2_048
PATIENCE = 60.0
"""Ratio of the time on the clock to the processor time that a call gets: our functions compute and never wait, so that what has not
ended by then was not let run, and a machine that others use must not make an answer wrong."""


class Workers:
    """Processes that call one function, and are killed and replaced where a call takes too long.

    Args:
        module: has the function, and is imported once, before the workers are forked.
        function: its name. Its last argument is the processor time that it may take, in seconds; it sets the limit
            itself, by `signal.setitimer(signal.ITIMER_PROF, seconds)`, which no C code escapes.
        count: of processes; by default one per core, at most 4.
    """

    def __init__(self, module: str, function: str, count: int | None = None) -> None:
        child = partial(trusted_child, (module,), MEMORY_MB)
        code = f"from {module} import {function}"
        count = count or max(1, min(4, os.cpu_count() or 1))
        self.function = function
        self.sessions = [Session(child, code, trusted=True) for _ in range(count)]

    def map(self, rows: Sequence[tuple[str, ...]], seconds: float) -> list[object]:
        """Call the function with each row of arguments; return its value, or the `CallFailed` that it ended in.

        Each worker takes the next row when it is done, so that a row that hangs holds up nobody else.
        """
        num_workers = min(len(self.sessions), len(rows))
        if num_workers < 2:
            return [self.call(self.sessions[0], row, seconds) for row in rows]
        with ThreadPoolExecutor(num_workers) as pool:
            idle = list(self.sessions[:num_workers])

            def work(row: tuple[str, ...]) -> object:
                session = idle.pop()
                try:
                    return self.call(session, row, seconds)
                finally:
                    idle.append(session)

            return list(pool.map(work, rows))

    def call(self, session: Session, row: tuple[str, ...], seconds: float, is_retry: bool = False) -> object:
        """Call the function in one worker; once more where the worker ended, which need not be the row's doing."""
        try:
            return session.call(self.function, *row, seconds, seconds=PATIENCE * seconds)
        except CallFailed as failure:
            if failure.ended and not is_retry:  # it may have been killed for memory that others use
                return self.call(session, row, seconds, is_retry=True)
            return failure


_workers: dict[tuple[int, str], Workers] = {}
_lock = threading.Lock()


def workers(module: str, function: str) -> Workers:
    """Return the workers of this process for a function; a fork gets its own."""
    with _lock:
        key = (os.getpid(), module)
        if key not in _workers:
            _workers[key] = Workers(module, function)
        return _workers[key]
