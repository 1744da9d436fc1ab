"""Runs every reward over a batch, with the protection that mixtures give.

An exception of a reward stops the run with the reward's name, the first sample and the traceback; that is the default
for programming errors, because a reward that silently scores 0 is worse than a run that stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from covey.rewards.batch import RewardBatch, RewardTable
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture


def evaluate(
    rewards: Sequence[Reward], weights: Mapping[str, float] | None, batch: RewardBatch
) -> RewardTable:
    """Score a batch with every reward.

    Args:
        rewards: a mixture, or a list of rewards, which is taken for a mixture without further options.
        weights: by name; they replace the rewards' own. None leaves those as they are.

    Raises:
        RewardError: a reward raised, or broke the contract; the message names it.
    """
    mixture = rewards if isinstance(rewards, Mixture) else Mixture(*rewards)
    return mixture.score(batch, weights)
