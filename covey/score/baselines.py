"""Baselines other than the mean of the group.

All are pure functions of numbers and group ids, in float64, like `covey.score.advantages`, and follow its rules: a value
of NaN is out of every statistic and gets exactly 0, a single value says nothing, a spread below rounding noise is none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from covey.score.advantages import EPSILON, Floats, deviation, has_spread, rows_of

Estimate = Callable[[Floats], Floats]
"""Scored rewards of one group → their advantages."""


def rloo_advantages(rewards: ArrayLike, groups: ArrayLike) -> Floats:
    """Compute A_i = R_i - mean of the others = G / (G - 1) (R_i - mean) (RLOO, arXiv:2402.14740, eq. 7). Shape (completions,)."""
    return _by_group(rewards, groups, lambda r: (r - r.mean()) * r.size / (r.size - 1))


def leave_one_out_advantages(rewards: ArrayLike, groups: ArrayLike, epsilon: float = EPSILON) -> Floats:
    """Divide the RLOO advantages by the deviation of the others, where they have one. Shape (completions,).

    The only success of a group is not divided (its siblings agree), the failures are. In groups of two nothing is.
    """

    def estimate(rewards: Floats) -> Floats:
        centred = (rewards - rewards.mean()) * rewards.size / (rewards.size - 1)
        others = [np.delete(rewards, i) for i in range(rewards.size)]
        scales = np.asarray([deviation(o) + epsilon if has_spread(o) else 1.0 for o in others])
        divided: Floats = centred / scales
        return divided

    return _by_group(rewards, groups, estimate)


def maxrl_advantages(rewards: ArrayLike, groups: ArrayLike) -> Floats:
    """Compute A_i = (R_i - mean) / mean, 0 where the mean is not above 0 (MaxRL, arXiv:2602.02710). Shape (completions,).

    For rewards of at least 0.
    """
    return _by_group(
        rewards, groups, lambda r: (r - r.mean()) / r.mean() if r.mean() > 0 else np.zeros_like(r)
    )


def pass_at_k_advantages(rewards: ArrayLike, groups: ArrayLike, epsilon: float = EPSILON) -> Floats:
    """Compute the lead of the best completion over the deviation, 0 for the others (arXiv:2503.19595). Shape (completions,)."""

    def estimate(rewards: Floats) -> Floats:
        second, best = np.argsort(rewards, kind="stable")[-2:]
        advantages = np.zeros_like(rewards)
        advantages[best] = (rewards[best] - rewards[second]) / (deviation(rewards) + epsilon)
        return advantages

    return _by_group(rewards, groups, estimate)


def opo_advantages(rewards: ArrayLike, groups: ArrayLike, lengths: ArrayLike) -> Floats:
    """Compute reward minus the length-weighted mean, Σ T R / Σ T (OPO, arXiv:2505.23585, eq. 9).

    Args:
        lengths: tokens of each completion. Shape (completions,).
    """
    rewards, lengths = np.asarray(rewards, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    advantages = np.zeros_like(rewards)
    for rows in rows_of(groups):
        kept = rows[~np.isnan(rewards[rows])]
        if has_spread(rewards[kept]) and lengths[kept].sum() > 0:
            advantages[kept] = rewards[kept] - np.average(rewards[kept], weights=lengths[kept])
    return advantages


def reinforce_pp_advantages(rewards: ArrayLike, groups: ArrayLike, lengths: ArrayLike) -> Floats:
    """Compute reward minus the group mean, whitened over all tokens of the batch (REINFORCE++-baseline, arXiv:2501.03262).

    A = (a - mean_tok a) / sqrt(var_tok a + 1e-8), a completion counting once per token; the variance has the n - 1 divisor.

    Args:
        lengths: tokens of each completion. Shape (completions,).
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    centred = _by_group(rewards, groups, lambda r: r - r.mean())
    scored = ~np.isnan(rewards)
    tokens = np.where(scored, np.asarray(lengths, dtype=np.float64), 0.0)
    if tokens.sum() < 2 or not has_spread(centred[scored]):
        return np.zeros_like(rewards)
    mean = np.average(centred, weights=tokens)
    variance = (tokens * (centred - mean) ** 2).sum() / (tokens.sum() - 1)
    return np.where(scored, (centred - mean) / np.sqrt(variance + 1e-8), 0.0)


def _by_group(rewards: ArrayLike, groups: ArrayLike, estimate: Estimate) -> Floats:
    """Apply `estimate` to the scored rewards of each group that has a spread; 0 for all others. Shape (completions,)."""
    rewards = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros_like(rewards)
    for rows in rows_of(groups):
        kept = rows[~np.isnan(rewards[rows])]
        if has_spread(rewards[kept]):
            advantages[kept] = estimate(rewards[kept])
    return advantages
