"""Frames: messages on a stream, four bytes of length, then an encoded value."""

from __future__ import annotations

import os
import struct

from .codec import encode

HEADER = struct.Struct(">I")


class Closed(Exception):
    """The other end is gone."""


def write_frame(fd: int, value: object) -> None:
    write_bytes(fd, encode(value))


def write_bytes(fd: int, payload: bytes) -> None:
    view = memoryview(HEADER.pack(len(payload)) + payload)
    while view:
        view = view[os.write(fd, view) :]


def read_bytes(fd: int, max_bytes: int | None = None) -> bytes:
    """Return the next message, not yet decoded; `max_bytes` bounds what is read into memory.

    Raises:
        Closed: the other end is gone, or what it announces is too long.
    """
    size = HEADER.unpack(_exactly(fd, HEADER.size))[0]
    if max_bytes is not None and size > max_bytes:
        raise Closed(f"a message of {size} bytes")
    return _exactly(fd, size)


def _exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise Closed("the other end is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
