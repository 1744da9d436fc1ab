"""Errors of allocators that found no memory, whatever their class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

ALLOCATOR_MESSAGES = ("can't allocate memory", "not enough memory", "out of memory")
"""Words in the RuntimeError of allocators that have no error class of their own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocator found no memory, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ALLOCATOR_MESSAGES)


@contextmanager
def memory_for(purpose: str) -> Iterator[None]:
    """Say in an error about memory, of whatever allocator, what it was for; other errors come through.

    Raises:
        torch.OutOfMemoryError: there is none.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise torch.OutOfMemoryError(f"{purpose} {error}") from error
