"""Comparison of values from a hostile process with the expected ones, in the host, on exact builtin types."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from covey.rewards.sandbox.inside.codec import Pairs, encode
from covey.rewards.sandbox.inside.library import Bag

REL_TOLERANCE = 1e-9


def same_value(expected: object, got: object, rel: float = REL_TOLERANCE) -> bool:
    """Return whether two values are equal as with Python's `==`, with three differences.

    Lists, tuples, ranges, deques and iterators are equal when their elements are, as JSON knows lists only. Numbers are
    equal within a relative `rel` where a float is expected. NaN equals NaN where it is expected.

    `got` may hold `Bag` and `Pairs`; its elements are never hashed, except as bytes.
    """
    if isinstance(expected, int | float | complex | Fraction | Decimal):
        return _same_number(expected, got, rel)
    if isinstance(expected, list | tuple):
        if isinstance(got, range):  # of any length; one more than expected is enough
            got = list(got[: len(expected) + 1])
        if not isinstance(got, list | tuple) or isinstance(got, Bag | Pairs) or len(got) != len(expected):
            return False
        return all(same_value(e, g, rel) for e, g in zip(expected, got, strict=True))
    if isinstance(expected, set | frozenset):
        return isinstance(got, Bag | set | frozenset) and set(map(_key, expected)) == set(map(_key, got))
    if isinstance(expected, dict):
        items = got if isinstance(got, Pairs) else list(got.items()) if isinstance(got, dict) else None
        if items is None or len(items) != len(expected):
            return False
        found = {_key(key): value for key, value in items}
        keyed = ((_key(key), value) for key, value in expected.items())
        return all(key in found and same_value(value, found[key], rel) for key, value in keyed)
    return type(expected) is type(got) and bool(expected == got)


def _same_number(expected: complex | Fraction | Decimal, got: object, rel: float) -> bool:
    """Return whether two numbers are equal, within `rel` of the larger where a float is expected."""
    if not isinstance(got, int | float | complex | Fraction | Decimal):
        return False
    if expected == got or (expected != expected and got != got):
        return True
    if not isinstance(expected, float | complex):
        return False
    try:
        got = float(got) if isinstance(got, Fraction | Decimal) else got
        gap, size = abs(expected - got), max(abs(expected), abs(got))
    except OverflowError:
        return False
    return math.isfinite(gap) and math.isfinite(size) and gap <= rel * size


def _key(value: object) -> bytes:
    """Return bytes that are equal where Python's `==` and `hash` say that two keys are the same one."""
    return encode(_normal(value))


def _normal(value: object) -> object:
    """Return a value that is encoded alike for all keys that are equal to it."""
    if isinstance(value, complex):  # a number in its simplest type: 1, 1.0, True and 1+0j are one key
        return _normal(value.real) if value.imag == 0 else value
    if isinstance(value, Fraction | Decimal) and value == value and abs(value) != math.inf:
        ratio = Fraction(value)  # of bounded digits, as the codec sees to
        as_float = float(ratio) if abs(ratio) < 1e300 else math.inf
        simple = as_float if as_float == ratio else ratio
        return int(ratio) if ratio.denominator == 1 else simple
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, tuple):
        return ("t", *map(_normal, value))
    if isinstance(value, Bag | set | frozenset):
        return ("s", *sorted({_key(element) for element in value}))
    if isinstance(value, list | dict | range):  # cannot be a key; only a forged message has it there
        return ("x",)
    return value


def same_output(expected: str, got: str) -> bool:
    """Return whether two texts are equal line by line; spaces at the end of lines and empty lines at the end of the text do not count."""
    a, b = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (expected, got))
    return a == b
