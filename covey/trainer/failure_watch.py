"""The end of a process that waits, in the middle of a pass, for one that has failed.

There it cannot be told by an exchange (`covey.trainer.distributed.same_end`): it is inside a collective operation that the
other will never join, and would stay there for the time-out of the process group, half an hour by default. So a process
that fails leaves its message in the store through which the processes met, and a thread of each other one looks there.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import torch.distributed
from accelerate import PartialState

from covey.text.foreign import show

POLL_SECONDS = 2.0
GRACE_SECONDS = 20.0
"""Time that a process has to end by itself after another one has failed: it may be about to hear of it, or to save."""

_RUNS = itertools.count()
"""Runs of this process so far: each has a place of its own in the store."""


@contextmanager
def ends_with_others(close: Callable[[str], object]) -> Iterator[None]:
    """Leave a message where this process fails inside; end it, with exit code 1, where another one does and it stays.

    Args:
        close: closes what is open, given the message, before this process ends from a thread.
    """
    state, key = PartialState(), f"covey/failure/{next(_RUNS)}"
    if state.num_processes == 1 or not torch.distributed.is_initialized():
        yield
        return
    store, over = torch.distributed.distributed_c10d._get_default_store(), Event()
    Thread(target=_watch, args=(store, key, over, close), daemon=True, name="covey-failure-watch").start()
    try:
        yield
    except Exception as error:
        if not store.check([key]):
            store.set(key, f"{type(error).__name__} on process {state.process_index}: {error}")
        raise
    finally:
        over.set()


def _watch(store: torch.distributed.Store, key: str, over: Event, close: Callable[[str], object]) -> None:
    """End this process some time after another one has left a message, unless it is over by then."""
    while not over.wait(POLL_SECONDS):
        try:
            if not store.check([key]):
                continue
            message = store.get(key).decode()
        except Exception as error:  # the process that keeps the store has left
            message = f"The process that the others meet at is gone ({error})."
        if over.wait(GRACE_SECONDS):
            return
        message = f"{message}\nThis process waited for it in the middle of a pass, and ends too."
        try:
            close(message)
            show(message, sys.stderr, flush=True)
        finally:
            os._exit(1)
