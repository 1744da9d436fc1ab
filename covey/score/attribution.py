"""Each reward's share of the absolute advantage: the one that is actually training the model has the largest.

An advantage is a sum over rewards, taken before the division by the spread: A_i = Σ_k w_k (R_ik - mean_k) / s, where the
mean is over the group and a reward that does not apply adds nothing. A reward's share is its part of Σ_i Σ_k |.|. A
reward that is constant within every group has a share of 0, whatever its weight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from covey.score.advantages import Floats, deviation, has_spread, rows_of


def contributions(values: ArrayLike, weights: ArrayLike, totals: ArrayLike, groups: ArrayLike) -> Floats:
    """Sum the absolute contribution of each reward to the advantages, shape (rewards,); all 0 where no group has spread.

    Args:
        values: NaN where a reward has no value. Shape (completions, rewards).
        weights: one per reward, or one per completion and reward. Shape (rewards,) or (completions, rewards).
        totals: the weighted sums, NaN where nothing scored. Shape (completions,).
        groups: id of the prompt of each completion. Shape (completions,).
    """
    values, totals = np.asarray(values, dtype=np.float64), np.asarray(totals, dtype=np.float64)
    weighed, found = values * np.asarray(weights), np.zeros(values.shape[1])
    for rows in rows_of(groups):
        if not has_spread(totals[rows]):
            continue
        scored = rows[~np.isnan(totals[rows])]
        for k, column in enumerate(weighed[scored].T):
            applies = column[~np.isnan(column)]
            if applies.size:
                found[k] += np.abs(applies - applies.mean()).sum() / deviation(totals[rows])
    return found
