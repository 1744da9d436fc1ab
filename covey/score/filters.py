"""The test of dynamic sampling: whether a group carries a signal (DAPO, arXiv:2503.14476, section 3.2).

A group whose completions all got the same reward teaches nothing. The filter looks at the task rewards as they were
scored, before anything shapes them: with a penalty for length, no two totals are ever the same, and a filter on them would
keep every group. Where each reward is normalised by itself, a group counts if any of them has a spread, although the sum
may have none.
"""

from __future__ import annotations

from collections.abc import Mapping

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
