"""Several ranks in one process: threads that exchange values, each with its own share of the work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from covey.types import Gather
from tests.clocks import PATIENCE

T = TypeVar("T")


def alone(value: Any) -> list[Any]:
    """The exchange of a run with one rank."""
    return [value]


def on_ranks(count: int, function: Callable[[int, Gather], T]) -> list[T]:
    """What `function(rank, gather)` returns on each of `count` ranks."""
    slots: list[Any] = [None] * count
    barrier = threading.Barrier(count, timeout=PATIENCE)

    def gather_of(rank: int) -> Gather:
        def gather(value: Any) -> list[Any]:
            slots[rank] = value
            barrier.wait()
            everything = list(slots)
            barrier.wait()
            return everything

        return gather

    def run(rank: int) -> T:
        try:
            return function(rank, gather_of(rank))
        except BaseException:
            barrier.abort()  # the others would wait for it
            raise

    if count == 1:
        return [function(0, alone)]
    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(run, rank) for rank in range(count)]
        return [future.result() for future in running]
