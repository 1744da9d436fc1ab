"""Tests of groups by their task rewards: whether one carries a signal (DAPO, arXiv:2503.14476, section 3.2), and which
completions succeed.

A group whose completions all got the same reward teaches nothing. The filter looks at the task rewards as they were
scored, before anything shapes them: with a penalty for length, no two totals are ever the same, and a filter on them would
keep every group. Where each reward is normalised by itself, a group counts if any of them has a spread, although the sum
may have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from covey.score.advantages import has_spread
from covey.types import ScoredGroup


def carries_signal(scored: ScoredGroup, weights: Mapping[str, float], per_reward: bool = False) -> bool:
    """Return whether the task rewards tell the completions of a group apart.

    Args:
        weights: weight of each task reward, by name; rewards without one (shaping) are not looked at.
        per_reward: whether each reward is normalised by itself (`normalize_then_sum`).
    """
    columns = [
        weight * np.asarray([s.counted for s in scored.scores[name]], dtype=np.float64)  # None becomes NaN
        for name, weight in weights.items()
        if weight
    ]
    if not columns:
        return False
    table = np.stack(columns)
    table[:, [total is None for total in scored.totals]] = np.nan  # out of every statistic
    if per_reward:
        return any(has_spread(column) for column in table)
    unscored = np.isnan(table).all(axis=0)
    return has_spread(np.where(unscored, np.nan, np.nansum(table, axis=0)))


def successes(
    named: Sequence[str] | None, least: float, truncated_are_out: bool, scored: ScoredGroup
) -> tuple[bool, ...]:
    """Return which completions of a group succeed: every task reward that applies to one gives it at least `least`.

    Args:
        named: the task rewards; None: all whose weight is above 0.
        truncated_are_out: whether completions that hit the length limit are out of the baseline: they do not succeed then.
    """
    heeded = [n for n in scored.scores if (scored.weights[n] > 0 if named is None else n in named)]
    found = []
    for i, (total, completion) in enumerate(zip(scored.totals, scored.group.completions, strict=True)):
        is_scored = total is not None and not (truncated_are_out and completion.is_truncated)
        values = [v for n in heeded if (v := scored.scores[n][i].counted) is not None]
        found.append(is_scored and bool(values) and min(values) >= least)
    return tuple(found)
