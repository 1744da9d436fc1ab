"""Frames: messages on a stream, four bytes of length, then an encoded value."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable

HEADER = struct.Struct(">I")


class Closed(Exception):
    """The other end is gone."""


def write_bytes(fd: int, payload: bytes) -> None:
    """Write a message that is encoded already."""
    view = memoryview(HEADER.pack(len(payload)) + payload)
    while view:
        view = view[os.write(fd, view) :]


def read_bytes(fd: int, max_bytes: int | None = None) -> bytes:
    """Return the next message, not yet decoded; `max_bytes` bounds what is read into memory.

    Raises:
        Closed: the other end is gone, or what it announces is too long.
    """
    read = functools.partial(os.read, fd)
    size = HEADER.unpack(read_exactly(read, HEADER.size))[0]
    if max_bytes is not None and size > max_bytes:
        raise Closed(f"a message of {size} bytes")
    return read_exactly(read, size)


def read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """Return `size` bytes of a stream; `read` returns as many as it is asked for or fewer, and none at the end.

    Raises:
        Closed: the stream ended before.
    """
    parts = []
    while size:
        part = read(min(size, 1 << 20))
        if not part:
            raise Closed("the other end is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
