"""Objects that a reward may change: copies of its own, so that nobody else sees what it does to them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from covey.types import Picture

T = TypeVar("T")

FIXED = frozenset({str, bytes, int, float, bool, complex, type(None)})
"""Types whose values cannot change, so that they need no copy."""


def own(value: T, opened: Callable[[Picture], Any] | None = None) -> T:
    """Return a copy whose lists, dictionaries and sets nobody else holds, however deep.

    Texts, tensors, arrays, images and other objects in it stay the ones they are: they may be large.

    Args:
        opened: returns what stands in the place of a `Picture`; None: they stay references.
    """
    try:
        return _own(value, opened)
    except RecursionError:  # it holds itself
        return copy.deepcopy(value)


def _own(value: Any, opened: Callable[[Picture], Any] | None) -> Any:
    kind = type(value)
    if kind in FIXED:
        return value
    if kind is Picture and opened is not None:
        return opened(value)
    if kind is list:
        return value.copy() if FIXED.issuperset(map(type, value)) else [_own(part, opened) for part in value]
    if kind is tuple:
        return value if FIXED.issuperset(map(type, value)) else tuple(_own(part, opened) for part in value)
    if not isinstance(value, list | dict | set | bytearray | deque):
        return value
    mine: Any = value.copy() if kind is dict else copy.copy(value)  # a class of its own stays
    if isinstance(value, list):
        mine[:] = [_own(part, opened) for part in value]
    elif isinstance(value, dict) and not FIXED.issuperset(map(type, value.values())):
        for key, part in value.items():
            mine[key] = _own(part, opened)
    return mine
