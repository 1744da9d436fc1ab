"""Faults of the disk while a checkpoint is written: it is full, a quota or a limit is reached, it went away.

They say nothing against the run, which goes on with the last good checkpoint behind it. All other errors stop it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

_TORCH_WRITER = ("inline_container", "PytorchStreamWriter", "iostream error")
"""What a RuntimeError of torch.save says when the file could not be written; torch has no error of its own for it."""


class Faults:
    """Keeps the first fault of the disk, so that a process goes on to where it meets the others.

    An exception in one process while the others wait for it in an exchange would hang them all.
    """

    def __init__(self) -> None:
        self.first: str | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Faults of the disk end here; every other error goes through."""
        try:
            yield
        except Exception as error:
            cause = disk_fault(error)
            if cause is None:
                raise
            self.first = self.first or cause


def disk_fault(error: BaseException) -> str | None:
    """What the disk had against it, where that is why something could not be written; else None."""
    found = [fault for fault in _chain(error) if _is_of_the_disk(fault)]
    named = [fault for fault in found if isinstance(fault, OSError | SafetensorError)]
    return None if not found else str((named or found)[-1])


def _is_of_the_disk(error: BaseException) -> bool:
    if isinstance(error, SafetensorError):
        return "I/O error" in str(error)
    if isinstance(error, RuntimeError):
        return any(sign in str(error) for sign in _TORCH_WRITER)
    return isinstance(error, OSError)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from, the root last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
