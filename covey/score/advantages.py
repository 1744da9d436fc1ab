"""Group-relative advantages: each completion against the others of its group.

Source: GRPO (arXiv:2402.03300, section 4.1). Pure functions of numbers and group ids, in float64, two passes.

Departures:
- A value of NaN means that nothing scored the completion. Such rows are out of mean and spread and get exactly 0
  (taken for a 0, they would earn an advantage over siblings with negative rewards).
- A spread below rounding noise is no spread: where all values of a group agree to `NOISE` of their size, the advantages
  are exactly 0. Divided by a tiny deviation, the last digit of a reward model would become a full-size gradient.
- The deviation has the n - 1 divisor; a single value has no deviation, and an advantage of 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covey.types import Scale

Floats = NDArray[np.float64]

EPSILON = 1e-4
"""Added to the deviation before dividing, in the units of the rewards."""

NOISE = 1e-6
"""Relative size of differences that are taken for rounding: about eight times the resolution of float32."""

CANCELLED = 1e-12
"""The same as an absolute size: what is left where rewards of ordinary size cancel, as in 0.1 + 0.2 - 0.3."""


def group_advantages(
    rewards: ArrayLike, groups: ArrayLike, scale: Scale = "group", epsilon: float = EPSILON
) -> Floats:
    """Compute reward minus the mean of its group, over a deviation.

    Args:
        rewards: one per completion, NaN where nothing scored it. Shape (completions,).
        groups: id of the prompt of each completion; equal ids belong together, in any order. Shape (completions,).
        scale: what to divide by. `group`: the deviation within the group (GRPO). `batch`: that of all rewards
            (Lite-PPO, arXiv:2508.08221). `none`: nothing (Dr. GRPO, arXiv:2503.20783).
        epsilon: added to the deviation.

    Returns:
        One advantage per completion, shape (completions,); 0 for unscored rows and for groups without spread.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    batch_deviation = deviation(rewards)
    advantages = np.zeros_like(rewards)
    for rows in rows_of(groups):
        values = rewards[rows]
        if not has_spread(values):
            continue
        divisor = {"group": deviation(values) + epsilon, "batch": batch_deviation + epsilon, "none": 1.0}[
            scale
        ]
        advantages[rows] = np.nan_to_num((values - np.nanmean(values)) / divisor)
    return advantages


def normalize_then_sum(
    values: ArrayLike, weights: ArrayLike, groups: ArrayLike, epsilon: float = EPSILON
) -> Floats:
    """Normalise each reward within its group, then take the weighted sum (GDPO, arXiv:2601.05242, before the batch step).

    Args:
        values: one row per completion, one column per reward, NaN where it does not apply. Shape (completions, rewards).
        weights: one per reward, or one per completion and reward. Shape (rewards,) or (completions, rewards).
        groups: id of the prompt of each completion. Shape (completions,).
        epsilon: added to each deviation.

    Returns:
        Shape (completions,); NaN where no reward applies.
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.broadcast_to(np.asarray(weights, dtype=np.float64), values.shape)
    columns = [group_advantages(column, groups, "group", epsilon) for column in values.T]
    unscored = np.isnan(values).all(axis=1)
    return np.where(unscored, np.nan, np.sum(weights.T * columns, axis=0))


def whiten(values: ArrayLike, epsilon: float = EPSILON) -> Floats:
    """Centre and scale over all completions, NaN left out: the batch step of GDPO. NaN rows get 0."""
    values = np.asarray(values, dtype=np.float64)
    if not has_spread(values):
        return np.zeros_like(values)
    centred: Floats = values - np.nanmean(values)
    return np.nan_to_num(centred / (deviation(values) + epsilon))


def gdpo_advantages(
    values: ArrayLike, weights: ArrayLike, groups: ArrayLike, epsilon: float = EPSILON
) -> Floats:
    """Compute GDPO in full (arXiv:2601.05242): normalise each reward in its group, sum, then whiten over the batch."""
    return whiten(normalize_then_sum(values, weights, groups, epsilon), epsilon)


def deviation(values: Floats) -> float:
    """Return the sample standard deviation (n - 1) of the values that are not NaN; 0 for fewer than two."""
    kept = values[~np.isnan(values)]
    return float(np.std(kept, ddof=1)) if kept.size > 1 else 0.0


def has_spread(values: Floats) -> bool:
    """Return whether the values that are not NaN differ by more than rounding noise."""
    kept = values[~np.isnan(values)]
    return bool(kept.size > 1 and np.ptp(kept) > max(NOISE * np.abs(kept).max(), CANCELLED))


def rows_of(groups: ArrayLike) -> list[NDArray[np.intp]]:
    """Return the row numbers of each group, in the order in which the groups first appear."""
    ids = np.asarray(groups)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return [np.flatnonzero(inverse == k) for k in np.argsort(first, kind="stable")]
