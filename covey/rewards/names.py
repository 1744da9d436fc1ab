"""What rewards are called in metrics and records."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

DECORATED = "reward_options"
"""The attribute in which `@reward` leaves (name, options)."""


def reward_name(function: Any) -> str:
    """The name a reward goes by in metrics and records.

    What its decorator says; its `name` or `__name__`; of a partial that of the function inside; of an object that of its
    class.
    """
    decorated = getattr(function, DECORATED, None)
    if decorated is not None:
        return str(decorated[0])
    while isinstance(function, functools.partial):
        function = function.func
    for attribute in ("name", "__name__"):
        name = getattr(function, attribute, None)
        if isinstance(name, str) and name:
            return "lambda" if name == "<lambda>" else name
    return type(function).__name__


def unique_names(names: Sequence[str]) -> list[str]:
    """`a, a, b` → `a, a_2, b`: no two rewards share a metric."""
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        unique.append(candidate)
    return unique
