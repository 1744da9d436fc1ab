"""Faults of the disk while a checkpoint is written: it is full, a quota or a limit is reached, it went away.

They say nothing against the run, which goes on with the last good checkpoint behind it. All other errors stop it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

_TORCH_WRITER = ("inline_container", "PytorchStreamWriter", "iostream error")
"""What a RuntimeError of torch.save says when the file could not be written; torch has no error of its own for it."""


class Faults:
    """Keeps the first fault of the disk, so that a process goes on to where it meets the others.

    An exception in one process while the others wait for it in a gather would hang them all.
    """

    def __init__(self) -> None:
        self.first: str | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep faults of the disk; let every other error through."""
        try:
            yield
        except Exception as error:
            cause = disk_fault(error)
            if cause is None:
                raise
            self.first = self.first or cause


def first_fault(faults: Iterable[str | None]) -> str | None:
    """Return the first fault, in the order of the processes; None where none has one."""
    return next((fault for fault in faults if fault is not None), None)


def disk_fault(error: BaseException) -> str | None:
    """Return what the disk had against it, where that is why something could not be written; else None."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:  # an error and what it came from, the root last
        if isinstance(cause, SafetensorError):
            is_of_disk = "I/O error" in str(cause)
        elif isinstance(cause, RuntimeError):
            is_of_disk = any(sign in str(cause) for sign in _TORCH_WRITER)
        else:
            is_of_disk = isinstance(cause, OSError)
        if is_of_disk:
            found.append(cause)
        cause = cause.__cause__ or cause.__context__
    named = [fault for fault in found if isinstance(fault, OSError | SafetensorError)]
    return str((named or found)[-1]) if found else None
