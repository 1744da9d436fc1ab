"""Turn credit: rewards by turn → one advantage per turn of a completion with tools.

    G_k = Σ_{j≥k} γ^{j−k} r_j        A_k = (G_k − b_k) / (dev(G_1) + ε)

The baseline b_k is the mean of G_k over all members of the group; a member that ended before turn k gives its last G. So the
number of terms does not hang on when a completion itself stops: a mean over those who reached turn k would depend on the
very action that it is compared with, and bias the gradient.

Departures from turn-level group normalisation (MT-GRPO, arXiv:2505.11821): the baseline above, and one deviation, that of
G_1, for all turns. With a reward at the end only and γ = 1, every A_k is the advantage of the whole completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from covey.score.advantages import EPSILON, Floats, deviation, has_spread, rows_of
from covey.types import Scale, Score


@dataclass(frozen=True)
class TurnCredit:
    """The terms on which each turn gets an advantage."""

    discount: float = 1.0
    """γ: what a reward counts for one turn earlier."""
    scale: Scale = "group"
    """What advantages are divided by."""


def turn_rewards(scores: Iterable[tuple[float, Score]], total: float, num_turns: int) -> Floats:
    """Sum the weighted scores of a completion by turn; whatever does not name a turn counts for the last.

    Args:
        scores: weight and score of each reward.
        total: what the turns must sum to, after shaping and penalties; NaN where the completion is unscored.
        num_turns: turns of the policy; a completion without any is taken for one.

    Returns:
        Shape (max(num_turns, 1),); all NaN where `total` is.
    """
    rewards = np.zeros(max(num_turns, 1))
    for weight, score in scores:
        if score.turns is not None and score.value is not None:
            rewards += weight * np.asarray(score.turns)
    rewards[-1] += total - rewards.sum()
    return rewards if np.isfinite(total) else np.full_like(rewards, np.nan)


def discounted_returns(rewards: ArrayLike, discount: float) -> Floats:
    """Return G_k = Σ_{j≥k} γ^{j−k} r_j. Shape (turns,)."""
    returns = np.array(rewards, dtype=np.float64)
    for k in range(len(returns) - 2, -1, -1):
        returns[k] += discount * returns[k + 1]
    return returns


def turn_advantages(
    returns: Sequence[Floats],
    groups: ArrayLike,
    scale: Scale = "group",
    batch_deviation: float = 1.0,
    epsilon: float = EPSILON,
) -> list[Floats]:
    """Compute A_k of every turn of every completion.

    Args:
        returns: G_k of each completion, shape (turns,); NaN where it is unscored: it is in no statistic and gets 0.
        groups: id of the prompt of each completion. Shape (completions,).
        scale: `group` divides by the deviation of G_1 in the group, `batch` by `batch_deviation`, `none` by nothing.
        batch_deviation: that of G_1 over the whole batch.
        epsilon: added to the deviation.

    Returns:
        One array per completion, shape (turns,); zeros where G_1 has no spread in the group.
    """
    advantages = [np.zeros_like(of_turns) for of_turns in returns]
    for rows in rows_of(groups):
        members = [row for row in rows.tolist() if not np.isnan(returns[row][0])]
        first = np.asarray([returns[row][0] for row in members])
        if not has_spread(first):
            continue
        divisor = {"group": deviation(first) + epsilon, "batch": batch_deviation + epsilon, "none": 1.0}[
            scale
        ]
        longest = max(len(returns[row]) for row in members)
        # A member that has ended gives its last return to the baselines of later turns.
        filled = [np.pad(returns[row], (0, longest - len(returns[row])), mode="edge") for row in members]
        baselines = np.mean(filled, axis=0)
        for row in members:
            advantages[row] = (returns[row] - baselines[: len(returns[row])]) / divisor
    return advantages
