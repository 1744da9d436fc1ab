"""The column that holds the right answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from covey.errors import RewardError

USUAL_NAMES = ("target", "answer", "solution")
"""Columns that datasets keep right answers in; the first that is there is taken."""


def golds(name: str | None, columns: Mapping[str, Any], reward: str) -> list[Any]:
    """The right answers of a batch.

    Raises:
        RewardError: there is no such column.
    """
    missing = missing_gold(name, columns)
    if missing:
        raise RewardError(
            f"Reward {reward!r} needs a column with the right answers, {missing[0]}; the batch has "
            f"{', '.join(sorted(columns)) or 'no columns'}. Rename the column, or name it: gold='...'."
        )
    found = columns[name] if name is not None else next(columns[n] for n in USUAL_NAMES if n in columns)
    return list(found)


def missing_gold(name: str | None, columns: Iterable[str]) -> list[str]:
    """What to name in an error where the column is not there; empty where it is."""
    present = set(columns)
    if name is not None:
        return [] if name in present else [repr(name)]
    return [] if present & set(USUAL_NAMES) else [" or ".join(map(repr, USUAL_NAMES))]


def note_unreadable(
    given: Sequence[Any], read: Sequence[Any], log_metric: Callable[[str, float], None] | None
) -> None:
    """Count the golds that are there and could not be read; a run whose golds cannot be read trains on nothing."""
    unreadable = [answer is None for gold, answer in zip(given, read, strict=True) if gold is not None]
    if log_metric is not None and unreadable:
        log_metric("golds/unreadable_share", sum(unreadable) / len(unreadable))
