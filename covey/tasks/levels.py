"""Difficulty of a task's puzzles, by the name of a level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from covey.errors import DatasetError

L = TypeVar("L")


def level_of(levels: Mapping[str, L], name: str) -> L:
    """Return the level of this name.

    Raises:
        DatasetError: there is none.
    """
    if name not in levels:
        raise DatasetError(f"level is {name!r}. Expected one of {', '.join(map(repr, levels))}.")
    return levels[name]
