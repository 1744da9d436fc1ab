"""Values of the standard library: taken apart into builtin ones, and made again where they arrive.

A process that does not trust the sender makes builtin stand-ins: a list for a deque or an iterator, pairs for a dictionary.
Whatever is wrong with the parts raises; who decodes takes that for a message that is none.
"""

from __future__ import annotations

import datetime
import functools
import itertools
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

from .exceptions import describe, exception_of

MAX_DRAWN = 10_000
"""Items of an iterator that cross, where no more can be asked for."""
FIRST_DRAWN, MORE_DRAWN = 32, 1_000
"""Items that cross with an iterator of the code, and those of each further request of the tests."""
MAX_DIGITS = 4_000
"""Digits of a `Fraction` or `Decimal`, and the largest exponent: arithmetic with them stays cheap."""

Parts = tuple[str, object]

_FACTORIES: Mapping[str, type] = {
    kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)
}
_VIEWS: Mapping[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


class Bag(list[Any]):
    """Elements of a set, not hashed: hashing hostile values can take quadratic time."""


class Unfinished(tuple[Any, ...]):
    """Items of an iterator that raised or went on, in a process that does not trust the sender; it equals no list."""


@dataclass
class Drawing:
    """Iterators of this process that were handed out before their end, and the way to draw from those of another one."""

    size: int = MAX_DRAWN
    kept: list[Iterator[object]] | None = None
    ask: Callable[[int], tuple[list[object], object]] | None = None
    sources: str = ""
    """Of the tests, which may name the exceptions that they expect."""

    def begin(
        self, ask: Callable[[int], tuple[list[object], object]] | None = None, sources: str = ""
    ) -> None:
        """Hand out iterators piece by piece from now on, or (`ask`) draw from those that were handed out."""
        self.ask, self.sources = ask, sources
        if ask is None:
            self.size, self.kept = FIRST_DRAWN, []

    def more(self, number: int) -> tuple[list[object], object]:
        """Draw further items of an iterator that was handed out; return them, and how it goes on."""
        assert self.kept is not None
        return self.draw(self.kept[number], MORE_DRAWN, number)

    def draw(
        self, iterator: Iterator[object], size: int, number: int | None = None
    ) -> tuple[list[object], object]:
        """Return items, and why there are no more: None, an exception as [kind, text], or the iterator's number."""
        items: list[object] = []
        try:
            for item in itertools.islice(iterator, size):
                items.append(item)
        except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            return items, list(describe(error))
        if len(items) < size:
            return items, None
        if number is None:
            number = -1
            if self.kept is not None:
                number = len(self.kept)
                self.kept.append(iterator)
        return items, number

    def drawn(self, parts: Any) -> Iterator[object]:
        """Yield the items again, and end as the iterator did."""
        items, end = parts
        while True:
            yield from items
            if type(end) is not int or self.ask is None or end < 0:
                break
            items, end = self.ask(end)
        if type(end) is int:
            raise OverflowError("an iterator of more items than can be handed over")
        if end is not None:
            kind, text = end
            raise exception_of(str(kind), str(text), self.sources)


DRAWING = Drawing()
"""Of this process."""


def apart(value: Any) -> Parts | None:
    """Return the name of a value's kind and its parts, of simpler types; None for an object that does not cross."""
    kind = type(value)
    if kind in _APART:
        return _APART[kind](value)
    if kind in _VIEWS:
        return _VIEWS[kind], list(value)
    if kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__"):
        return "iterator", DRAWING.draw(value, DRAWING.size)
    bases = kind.__mro__
    if kind.__bases__ == (tuple,) and type(kind.__dict__.get("_fields")) is tuple:
        return "namedtuple", (kind.__name__, list(kind.__dict__["_fields"]), list(tuple.__iter__(value)))
    if Enum in bases and (int in bases or str in bases):
        return "plain", int.__int__(value) if int in bases else str.__str__(value)
    if any(base.__module__ == "numpy" and base.__name__ == "generic" for base in bases):
        return "plain", value.item()
    return None


def made(name: str, parts: Any, hashed: bool) -> object:
    """Return the value of a kind and its parts; with `hashed` False a builtin stand-in, which hashes nothing."""
    return (_MADE if hashed else {**_MADE, **_STAND_INS})[name](parts)


def containers(value: object) -> list[Any]:
    """Return the containers in a value that can be changed in place, in the order in which both processes find them."""
    found: list[Any] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list | dict | deque | set | bytearray):
            found.append(part)
        if isinstance(part, list | tuple | deque):
            waiting += reversed(part)
        elif isinstance(part, dict):
            waiting += reversed(part.values())
    return found


def _fraction(parts: Any) -> Fraction:
    """Return a fraction of two bounded integers."""
    numerator, denominator = (_plain(part) for part in parts)
    if max(numerator.bit_length(), denominator.bit_length()) > 4 * MAX_DIGITS:
        raise ValueError("a fraction of too many digits")
    return Fraction(numerator, denominator)


def _decimal(text: Any) -> Decimal:
    """Return a decimal of bounded size; one that signals at every comparison is none."""
    if len(text) > MAX_DIGITS or (number := Decimal(text)).is_snan():
        raise ValueError("a decimal that does not cross")
    if number.is_finite() and number and abs(number.adjusted()) > MAX_DIGITS:
        raise ValueError("a decimal beyond the bounds")
    return number


def _zone(value: Any) -> int | None:
    """Return a time zone's offset in microseconds; only fixed offsets cross."""
    if value.tzinfo is None:
        return None
    if type(value.tzinfo) is not datetime.timezone:
        raise ValueError(f"a time zone of type {type(value.tzinfo).__qualname__}")
    return value.tzinfo.utcoffset(None) // datetime.timedelta(microseconds=1)


def _in_zone(kind: Any, parts: Any) -> Any:
    """Return a time or a date and time from its numbers, its fold and the offset of its zone."""
    *numbers, fold, offset = parts
    zone = None if offset is None else datetime.timezone(datetime.timedelta(microseconds=offset))
    return kind(*numbers, fold=fold, tzinfo=zone)


def _plain(value: Any) -> Any:
    """Return an exact scalar as it is."""
    if type(value) not in (int, float, complex, bool, str, bytes):
        raise ValueError("not a plain value")
    return value


@functools.lru_cache(maxsize=256)
def _tuple_class(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def _defaultdict(parts: Any) -> defaultdict[object, object]:
    factory, items = parts
    return defaultdict(None if factory is None else _FACTORIES[factory], items)


_APART: Mapping[type, Callable[[Any], Parts]] = {
    range: lambda v: ("range", [v.start, v.stop, v.step]),
    Fraction: lambda v: ("fraction", [v.numerator, v.denominator]),
    Decimal: lambda v: ("decimal", str(v)),
    deque: lambda v: ("deque", (v.maxlen, list(v))),
    Counter: lambda v: ("counter", dict(v)),
    OrderedDict: lambda v: ("ordered", dict(v)),
    defaultdict: lambda v: ("defaultdict", (getattr(v.default_factory, "__name__", None)
                                            if v.default_factory in _FACTORIES.values() else None, dict(v))),
    datetime.date: lambda v: ("date", [v.year, v.month, v.day]),
    datetime.timedelta: lambda v: ("timedelta", [v.days, v.seconds, v.microseconds]),
    datetime.time: lambda v: ("time", [v.hour, v.minute, v.second, v.microsecond, v.fold, _zone(v)]),
    datetime.datetime: lambda v: ("datetime", [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold,
                                               _zone(v)]),
    datetime.timezone: lambda v: ("timezone", v.utcoffset(None) // datetime.timedelta(microseconds=1)),
}  # fmt: skip

_MADE: Mapping[str, Callable[[Any], object]] = {
    "range": lambda p: range(*p),
    "fraction": _fraction,
    "decimal": _decimal,
    "deque": lambda p: deque(p[1], p[0]),
    "counter": lambda p: Counter(dict(p)),
    "ordered": lambda p: OrderedDict(p),
    "defaultdict": _defaultdict,
    "date": lambda p: datetime.date(*p),
    "timedelta": lambda p: datetime.timedelta(*p),
    "time": lambda p: _in_zone(datetime.time, p),
    "datetime": lambda p: _in_zone(datetime.datetime, p),
    "timezone": lambda p: datetime.timezone(datetime.timedelta(microseconds=p)),
    "keys": lambda p: dict.fromkeys(p).keys(),
    "values": lambda p: dict(enumerate(p)).values(),
    "items": lambda p: dict(p).items(),
    "iterator": lambda p: DRAWING.drawn(p),
    "namedtuple": lambda p: _tuple_class(p[0], tuple(p[1]))(*p[2]),
    "plain": _plain,
}

_STAND_INS: Mapping[str, Callable[[Any], object]] = {
    "deque": lambda p: list(p[1]),
    "counter": lambda p: p,
    "ordered": lambda p: p,
    "defaultdict": lambda p: p[1],
    "keys": Bag,
    "values": list,
    "items": Bag,
    "iterator": lambda p: list(p[0]) if p[1] is None else Unfinished(p[0]),
    "namedtuple": lambda p: tuple(p[2]),
}
