"""Exchange between the processes of one run, and the end of it."""

from __future__ import annotations

import gc
from typing import TypeVar

import torch.distributed
from accelerate import PartialState
from accelerate.utils import gather_object

T = TypeVar("T")


def gather(value: T) -> list[T]:
    """Return every process's value in rank order. Collective: every process calls it equally often."""
    return list(gather_object([value])) if PartialState().num_processes > 1 else [value]


def gather_on_main(value: T) -> list[T]:
    """Return every process's value in rank order on process 0, and nothing on the others. Collective.

    The others send their own value and receive none: what is only recorded need not travel to all.
    """
    state = PartialState()
    if state.num_processes == 1:
        return [value]
    values: list[T] | None = [value] * state.num_processes if state.is_main_process else None
    torch.distributed.gather_object(value, values)
    return values or []


def end_processes() -> None:
    """Leave the group of processes and end its threads. The last thing a script does, after `del trainer`.

    Without it the interpreter may be aborted while it ends (SIGABRT), after all work is done: gloo's threads hold tensors, and
    to let go of one needs an interpreter that is alive. A group's threads live as long as anything refers to the group, so
    leaving it is not enough: DDP's wrapper refers to it, and dies only when cyclic garbage is collected.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
        torch.distributed.destroy_process_group()
        gc.collect()
        # Python's reference goes last: PyTorch releases the GIL for it. If DDP's went last, in the middle of the collection, the
        # group would wait with the GIL for its threads, and one that lets go of a tensor waits for the GIL: for ever.
        del group
