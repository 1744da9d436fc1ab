"""Results of rewards as plain values: one value per completion, in whatever held them, and whatever is a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, ValuesView
from itertools import islice
from numbers import Number
from typing import Any

TEXTS = (str, bytes, bytearray, memoryview)
CONTAINERS = (list, tuple, dict, set, frozenset, *TEXTS)
"""What is no number, whatever methods its class has."""


def listed(result: Any, expected: int) -> Sequence[object] | None:
    """Return a result as a sequence; None where it is none, or has no order.

    Taken are sequences, views of a dictionary's values, generators and other iterators, arrays and tensors with one dimension or
    with one column. Of an iterator, which may have no end, at most one value more than expected is read.
    """
    shape = getattr(result, "shape", None)
    if isinstance(shape, tuple) and hasattr(result, "tolist"):
        if len(shape) == 2 and shape[1] == 1:
            result = result.reshape(-1)
        elif len(shape) != 1:
            return None
        return list(result.tolist())
    if isinstance(result, Iterator):
        return list(islice(result, expected + 1))
    if isinstance(result, Sequence | ValuesView) and not isinstance(result, TEXTS):
        return result if isinstance(result, list | tuple) else list(result)
    return list(result.tolist()) if hasattr(result, "tolist") and not shape else None


def number(value: Any) -> float:
    """Return a value as a float, infinity where it is too large: numbers of all kinds, arrays and tensors with one element.

    Raises:
        TypeError, ValueError, RuntimeError: it is no number.
    """
    if hasattr(value, "item") and not isinstance(value, Number):
        value = value.item()
    if isinstance(value, CONTAINERS) or not (isinstance(value, Number) or hasattr(value, "__float__")):
        raise TypeError(f"a {type(value).__name__} is no number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def shown(value: object) -> str:
    """Return type and value for a message, cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a class of the user's, or an integer with more digits than Python writes
        return type(value).__name__
    return f"{type(value).__name__} ({text if len(text) <= 80 else text[:77] + '...'})"


def is_finite(value: object) -> bool:
    """Return whether a value is an int or float, and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
