"""Values as bytes: exact builtin types, bounded in depth and size, nothing that could carry behaviour.

An object, a subclass with its own `__eq__`, or a function cannot cross; encoding it raises `Opaque`. Integers travel as
bytes and not as decimals, so that a number of a million digits costs linear time.

    N None   T True   F False   i int   f float   c complex   s str   b bytes   y bytearray
    l list   t tuple  e set     z frozenset       d dict
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100

_DICTS = (dict, defaultdict, Counter, OrderedDict)
_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"e", frozenset: b"z"}
_MAKERS: dict[bytes, Callable[[list[Any]], Any]] = {b"l": list, b"t": tuple, b"e": set, b"z": frozenset}


class Opaque(Exception):
    """A value of a type that does not cross."""


class Malformed(Exception):
    """Bytes that are no value, or one beyond the bounds."""


class Bag(list[Any]):
    """Elements of a set, not hashed: hashing hostile values can take quadratic time."""


class Pairs(list[Any]):
    """Items of a dictionary as (key, value), not hashed."""


def encode(value: object) -> bytes:
    """Return the bytes of a value.

    Raises:
        Opaque: some part of it is not of an exact builtin type, or it is nested too deep.
    """
    parts: list[bytes] = []
    _encode(value, parts, 0)
    return b"".join(parts)


def _encode(value: Any, parts: list[bytes], depth: int) -> None:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise Opaque(f"nested more than {MAX_DEPTH} deep")
    if value is None or kind is bool:
        parts.append(b"N" if value is None else b"T" if value else b"F")
    elif kind is int:
        _sized(parts, b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    elif kind is float:
        parts.append(b"f" + struct.pack(">d", value))
    elif kind is complex:
        parts.append(b"c" + struct.pack(">dd", value.real, value.imag))
    elif kind is str:
        _sized(parts, b"s", value.encode("utf-8", "surrogatepass"))
    elif kind is bytes or kind is bytearray:
        _sized(parts, b"b" if kind is bytes else b"y", bytes(value))
    elif kind in _SEQUENCES:
        parts.append(_SEQUENCES[kind] + struct.pack(">I", len(value)))
        for item in value:
            _encode(item, parts, depth + 1)
    elif kind in _DICTS:
        parts.append(b"d" + struct.pack(">I", len(value)))
        for key, item in dict.items(value):
            _encode(key, parts, depth + 1)
            _encode(item, parts, depth + 1)
    else:
        raise Opaque(f"{kind.__module__}.{kind.__qualname__}")


def _sized(parts: list[bytes], tag: bytes, content: bytes) -> None:
    parts.append(tag + struct.pack(">I", len(content)))
    parts.append(content)


def decode(data: bytes, hashed: bool = True) -> Any:
    """Return the value of bytes.

    Args:
        hashed: False gives sets as `Bag` and dictionaries as `Pairs`, for values that a hostile process made.

    Raises:
        Malformed: they are no value.
    """
    reader = _Decoder(data, hashed)
    try:
        value = reader.value(0)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, MemoryError, KeyError) as error:
        raise Malformed(repr(error)) from None
    if reader.place != len(data):
        raise Malformed("bytes left over")
    return value


@dataclass
class _Decoder:
    """Bytes of a value, and the place up to which they are read."""

    data: bytes
    hashed: bool
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
        if depth > MAX_DEPTH:
            raise Malformed("nested too deep")
        tag = self.take(1)
        if tag in _SCALARS:
            return _SCALARS[tag](self)
        size = self.size()
        if tag == b"d":
            pairs = [(self.value(depth + 1), self.value(depth + 1)) for _ in range(size)]
            return dict(pairs) if self.hashed else Pairs(pairs)
        items = [self.value(depth + 1) for _ in range(size)]
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
}
