"""What small steps cost → what a large one costs. Pure.

A step has costs that do not grow with its size (a round of decoding, the optimizer's pass over the weights) and costs in
proportion to it. Two steps of different shape tell them apart. Where none do, everything is taken to grow in proportion,
which is more than it will be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

EULER = 0.5772
"""The largest of n waiting times is (ln n + 0.5772) mean ones."""

MEASURABLE = 1e-6
"""Seconds below which a clock says nothing."""

Work = tuple[float, float]
"""How often a step has the fixed cost, and how large it is."""


def relative_cost(seen: Sequence[tuple[Work, float]], wanted: Work) -> float:
    """Cost of a step over the cost of the last one that was seen.

    Args:
        seen: work and seconds of each step, the largest last.
    """
    fixed, growing = _fitted(seen)
    costs = [fixed * often + growing * size for often, size in (wanted, seen[-1][0])]
    return costs[0] / costs[1] if costs[1] > 0 else wanted[1] / seen[-1][0][1]


def _fitted(seen: Sequence[tuple[Work, float]]) -> tuple[float, float]:
    """Seconds per unit of each kind of work, at least 0: least squares of the relative errors."""
    kept = [(work, seconds) for work, seconds in seen if seconds > MEASURABLE]
    if not kept:
        return 0.0, 0.0
    rows = np.array([[often / seconds, size / seconds] for (often, size), seconds in kept])
    if np.linalg.matrix_rank(rows / rows.max(0), tol=1e-2) == 2:
        both = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
        if both.min() >= 0:
            return float(both[0]), float(both[1])
        alone = [_alone(rows[:, kind]) for kind in (0, 1)]
        errors = [float(np.square(rows[:, kind] * alone[kind] - 1).sum()) for kind in (0, 1)]
        if errors[0] < errors[1]:
            return alone[0], 0.0
    return 0.0, _alone(rows[:, 1])


def _alone(column: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(column.sum() / np.square(column).sum())


def mean_length(mean: float, cut_share: float, limit: int) -> float:
    """Mean length of completions that may have `limit` tokens.

    Those that were cut are taken to end as the others do: at every token with the same probability.

    Args:
        mean: length of completions that may have fewer.
        cut_share: how many of them hit their limit.
    """
    if not cut_share:
        return mean
    ends = _ends(mean, cut_share)
    return float(limit) if ends == 0 else max(mean, -math.expm1(limit * math.log1p(-ends)) / ends)


def longest_length(mean: float, cut_share: float, limit: int, completions: float) -> float:
    """Length of the longest of so many completions, which is how many rounds of decoding there are; see `mean_length`."""
    ends = _ends(mean, cut_share)
    if ends == 0:
        return float(limit)
    return min(float(limit), max(mean, (math.log(max(1.0, completions)) + EULER) / ends))


def _ends(mean: float, cut_share: float) -> float:
    """Probability that a token is the last: ends over tokens seen."""
    return min(1 - 1e-9, (1 - cut_share) / max(mean, 1e-9))
