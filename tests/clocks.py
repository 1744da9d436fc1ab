"""Time in tests: what a block costs is read off its own thread's clock, and a wait ends by what is waited for.

A limit on the clock of the wall says something of the machine: where others use it too, a law that holds is seen to break.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 300.0
"""Seconds after which nothing is waited for any more: a guard against what never ends, and no law."""


@contextmanager
def own_seconds(most: float) -> Iterator[None]:
    """Hold the block to seconds of processor time of its own thread, in which waits and other threads do not count."""
    began = time.thread_time()
    yield
    assert (taken := time.thread_time() - began) < most, f"{taken:.2f} s of processor time, {most} at most"


def eventually(holds: Callable[[], object], pause: float = 0.01) -> bool:
    """Return True as soon as it holds, False where it does not within `PATIENCE`."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
