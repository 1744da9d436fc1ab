"""Values as bytes: exact builtin types, bounded in depth and size, nothing that could carry behaviour.

An object, a subclass with its own `__eq__`, or a function cannot cross; encoding it raises `Opaque`. Integers travel as
bytes and not as decimals, so that a number of a million digits costs linear time.

    N None   T True   F False   i int   f float   c complex   s str   b bytes   y bytearray
    l list   t tuple  e set     z frozenset       d dict
    x a value of the standard library: its kind, then its parts (`covey.rewards.sandbox.inside.library`)
    r an object that the receiver knows, by its number
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .library import Bag as Bag
from .library import apart, made

MAX_DEPTH = 120
"""Levels of a message."""
ANSWER_DEPTH = 100
"""Levels of an answer of hostile code. Fewer, so that what crossed once can be handed back, and wrapped on the way."""

_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"e", frozenset: b"z"}
_MAKERS: dict[bytes, Callable[[list[Any]], Any]] = {b"l": list, b"t": tuple, b"e": set, b"z": frozenset}


class Opaque(Exception):
    """A value of a type that does not cross.

    `culprit` is the object itself; None where its size or depth is the reason.
    """

    def __init__(self, text: str, culprit: object = None) -> None:
        super().__init__(text)
        self.culprit = culprit


class Malformed(Exception):
    """Bytes that are no value, or one beyond the bounds."""


class Pairs(list[Any]):
    """Items of a dictionary as (key, value), not hashed."""


def encode(value: object, max_depth: int = MAX_DEPTH, known: Mapping[int, int] | None = None) -> bytes:
    """Return the bytes of a value.

    Args:
        known: number by `id` of objects that the receiver has already: they cross as their numbers.

    Raises:
        Opaque: some part of it is not of an exact builtin type, or it is nested too deep.
    """
    parts: list[bytes] = []
    _encode(value, parts, max_depth, known or {})
    return b"".join(parts)


def _encode(value: Any, parts: list[bytes], depth: int, known: Mapping[int, int]) -> None:
    """Add the bytes of a value that may have `depth` more levels."""
    kind = type(value)
    if depth < 0:
        raise Opaque("nested too deep")
    if value is None or kind is bool:
        parts.append(b"N" if value is None else b"T" if value else b"F")
    elif kind is int:
        _sized(parts, b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    elif kind is float or kind is complex:
        numbers = (value,) if kind is float else (value.real, value.imag)
        parts.append((b"f" if kind is float else b"c") + struct.pack(f">{len(numbers)}d", *numbers))
    elif kind is str:
        _sized(parts, b"s", value.encode("utf-8", "surrogatepass"))
    elif known and id(value) in known:
        parts.append(b"r" + struct.pack(">I", known[id(value)]))
    elif kind is bytes or kind is bytearray:
        _sized(parts, b"b" if kind is bytes else b"y", bytes(value))
    elif kind in _SEQUENCES:
        parts.append(_SEQUENCES[kind] + struct.pack(">I", len(value)))
        for item in value:
            _encode(item, parts, depth - 1, known)
    elif kind is dict:
        parts.append(b"d" + struct.pack(">I", len(value)))
        for key, item in value.items():
            _encode(key, parts, depth - 1, known)
            _encode(item, parts, depth - 1, known)
    else:
        taken = _apart(value)
        _sized(parts, b"x", taken[0].encode())
        _encode(taken[1], parts, depth - 1, known)


def _apart(value: Any) -> tuple[str, object]:
    """Return a value of the standard library as its kind and its parts, of which it can be made again.

    Raises:
        Opaque: it is of another type, or beyond the bounds.
    """
    try:
        taken = apart(value)
    except ValueError as error:
        raise Opaque(str(error)) from None
    if taken is None:
        kind = type(value)
        raise Opaque(f"{kind.__module__}.{kind.__qualname__}", value)
    return taken


def _sized(parts: list[bytes], tag: bytes, content: bytes) -> None:
    parts.append(tag + struct.pack(">I", len(content)))
    parts.append(content)


def decode(data: bytes, hashed: bool = True, max_depth: int = MAX_DEPTH, known: Sequence[object] = ()) -> Any:
    """Return the value of bytes.

    Args:
        hashed: False gives sets as `Bag` and dictionaries as `Pairs`, for values that a hostile process made.
        known: objects that the sender calls by their numbers.

    Raises:
        Malformed: they are no value.
    """
    reader = _Decoder(data, hashed, known)
    try:
        value = reader.value(max_depth)
    except Malformed:
        raise
    except Exception as error:  # the boundary: whatever hostile bytes lead to, they are no message
        raise Malformed(f"{type(error).__name__} while it was read") from None
    if reader.place != len(data):
        raise Malformed("bytes left over")
    return value


@dataclass
class _Decoder:
    """Bytes of a value, and the place up to which they are read."""

    data: bytes
    hashed: bool
    known: Sequence[object]
    place: int = 0

    def take(self, size: int) -> bytes:
        end = self.place + size
        if end > len(self.data):
            raise Malformed("cut short")
        taken = self.data[self.place : end]
        self.place = end
        return taken

    def size(self) -> int:
        """Return a count of bytes or items; each takes at least one byte, so none is larger than what is left."""
        size = struct.unpack(">I", self.take(4))[0]
        if size > len(self.data) - self.place:
            raise Malformed("a size beyond the end")
        return size

    def value(self, depth: int) -> Any:
        """Return the next value, of at most `depth` more levels."""
        if depth < 0:
            raise Malformed("nested too deep")
        tag = self.take(1)
        if tag in _SCALARS:
            return _SCALARS[tag](self)
        size = self.size()
        if tag == b"x":
            return made(self.take(size).decode(), self.value(depth - 1), self.hashed)
        if tag == b"d":
            pairs = [(self.value(depth - 1), self.value(depth - 1)) for _ in range(size)]
            return dict(pairs) if self.hashed else Pairs(pairs)
        items = [self.value(depth - 1) for _ in range(size)]
        if not self.hashed and tag in (b"e", b"z"):
            return Bag(items)
        return _MAKERS[tag](items)


_SCALARS: dict[bytes, Callable[[_Decoder], Any]] = {
    b"N": lambda reader: None,
    b"T": lambda reader: True,
    b"F": lambda reader: False,
    b"i": lambda reader: int.from_bytes(reader.take(reader.size()), "big", signed=True),
    b"f": lambda reader: struct.unpack(">d", reader.take(8))[0],
    b"c": lambda reader: complex(*struct.unpack(">dd", reader.take(16))),
    b"s": lambda reader: reader.take(reader.size()).decode("utf-8", "surrogatepass"),
    b"b": lambda reader: bytes(reader.take(reader.size())),
    b"y": lambda reader: bytearray(reader.take(reader.size())),
    b"r": lambda reader: reader.known[struct.unpack(">I", reader.take(4))[0]],
}
