"""Exchange between the processes of one run, their common end where one fails, and the end of it all."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed
from accelerate import PartialState
from accelerate.utils import gather_object

from covey import errors
from covey.types import Gather

T = TypeVar("T")

EVERYWHERE = "_is_raised_everywhere"
"""Attribute of an error that all processes raise."""


@dataclass(frozen=True)
class ProcessFailure:
    """The fault that ended a process. It takes the place of the value that the others wait for."""

    rank: int
    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> ProcessFailure:
        return cls(PartialState().process_index, type(error).__name__, str(error))

    def error(self) -> Exception:
        """Return the error that every process raises: of the same kind where it is one of Covey's, with the same message."""
        kind = getattr(errors, self.kind, RuntimeError)
        error: Exception = (kind if issubclass(kind, errors.CoveyError) else RuntimeError)(self.message)
        error.add_note(f"{self.kind} on process {self.rank}")
        vars(error)[EVERYWHERE] = True
        return error


def gather(value: T) -> list[T]:
    """Return every process's value in rank order. Collective: every process calls it equally often.

    Raises:
        CoveyError, RuntimeError: what ended another process since the last exchange; see `raise_together`.
    """
    return unless_one_failed(gather_object([value])) if PartialState().num_processes > 1 else [value]


def unless_one_failed(values: Sequence[T]) -> list[T]:
    """Return what processes sent; raise where one of them has sent, in place of its value, what it failed of."""
    for sent in values:
        if isinstance(sent, ProcessFailure):
            raise sent.error()
    return list(values)


def raise_together(fault: BaseException | None) -> None:
    """Raise in all processes what failed in one: there the error itself, elsewhere one with the same message. Collective.

    The others are where they wait for this process: in a call of this function, or of `gather`.
    """
    if fault is None:
        gather(None)
    elif PartialState().num_processes == 1 or not has_to_be_told(fault):
        raise fault
    else:
        own = ProcessFailure.of(fault)
        first = next(sent for sent in gather_object([own]) if isinstance(sent, ProcessFailure))
        if first != own:
            raise first.error() from fault
        vars(fault)[EVERYWHERE] = True
        raise fault


def has_to_be_told(fault: BaseException) -> bool:
    """Return whether the other processes do not know of a fault, and come to a `gather`.

    Where memory runs out they may be in the middle of a pass through shards: `covey.trainer.failure_watch` ends those.
    """
    return not hasattr(fault, EVERYWHERE) and not isinstance(fault, torch.OutOfMemoryError)


@contextmanager
def same_end() -> Iterator[None]:
    """End all processes with the same error where one fails inside: the others learn of it where they next gather.

    For work that each process does by itself, such as sampling and scoring.
    """
    try:
        yield
    except Exception as error:
        raise_together(error)


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


def gather_of_its_own() -> Gather:
    """Return a `gather` over a group of its own, on CPUs, for a thread that runs beside the main one. Collective.

    Two threads that used one group would mix up whose turn it is.
    """
    ranks = PartialState().num_processes
    if ranks == 1:
        return gather
    group = torch.distributed.new_group(backend="gloo")

    def gather_beside(value: T, /) -> list[T]:
        values = [value] * ranks
        torch.distributed.all_gather_object(values, value, group=group)
        return unless_one_failed(values)

    return gather_beside


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
