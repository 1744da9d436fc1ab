"""Groups → scored groups: every reward over every completion, then the advantages.

Rewards always see whole groups. Statistics that reach beyond a group (batch scaling, GDPO's whitening) are taken over
all ranks: the numbers of every rank are gathered, never the completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from covey.metrics import Mean, Metric, merge
from covey.rewards.batch import RewardBatch
from covey.rewards.mixture import Mixture
from covey.score.attribution import contributions
from covey.score.estimators import Estimator, Outcomes
from covey.score.score_metrics import reward_metrics
from covey.score.shaping import Shaping
from covey.types import Gather, Group, ScoredGroup


@dataclass
class Scorer:
    """Scores groups with the rewards of a mixture."""

    rewards: Mixture
    weights: Mapping[str, float] | None
    """By name; None: those that the rewards bring along."""
    estimate: Estimator
    gather: Gather = lambda value: [value]
    rank: int = 0
    shaping: Shaping = field(default_factory=Shaping)

    def run_rewards(
        self,
        groups: Sequence[Group],
        trainer_state: object = None,
        penalties: Sequence[float] | None = None,
    ) -> tuple[list[ScoredGroup], dict[str, Metric]]:
        """Score whole groups with every reward. Nothing is gathered.

        Args:
            penalties: taken off the total of each completion before advantages are worked out. Shape (completions,).

        Returns:
            The groups in the order given, with advantages of 0, and the metrics of this rank's share.

        Raises:
            RewardError: a reward raised or broke its contract.
        """
        table = self.rewards.score(RewardBatch.of_groups(groups, trainer_state), self.weights)
        scored: list[ScoredGroup] = []
        start = 0
        for group in groups:
            rows = range(start, start + len(group.completions))
            start = rows.stop
            scored.append(
                ScoredGroup(
                    group=group,
                    scores={name: tuple(column[i] for i in rows) for name, column in table.scores.items()},
                    totals=tuple(table.total(i) for i in rows),
                    advantages=(0.0,) * len(rows),
                    extras={name: tuple(column[i] for i in rows) for name, column in table.extras.items()},
                    # All completions of a prompt share its columns, and so its task and its weights.
                    weights={name: column[rows.start] for name, column in table.weights.items()},
                    penalties=() if penalties is None else tuple(penalties[i] for i in rows),
                )
            )
        metrics = merge(table.metrics, reward_metrics(scored, list(table.scores)))
        if penalties is not None:
            metrics["reward/kl_penalty"] = Mean.of(penalties)
        return scored, metrics

    def add_advantages(self, scored: Sequence[ScoredGroup]) -> tuple[list[ScoredGroup], dict[str, Metric]]:
        """Compute advantages over the groups of all ranks. Collective: every rank must call it equally often.

        Returns:
            The groups in the order given, and the metrics of this rank's share.
        """
        names = [reward.name for reward in self.rewards]
        own = Outcomes.of(scored, names, self.shaping)
        parts = self.gather(own)
        start = sum(len(part.totals) for part in parts[: self.rank])
        advantages = self.estimate(Outcomes.joined(parts))[start : start + len(own.totals)]

        shares = contributions(own.values, own.weights, own.totals, own.groups)
        metrics: dict[str, Metric] = {"advantages/mean_abs": Mean.of(np.abs(advantages))}
        for name, share in zip(names, shares, strict=True):
            metrics[f"rewards/{name}/advantage_share"] = Mean(float(share), float(shares.sum()))

        left = iter(advantages.tolist())
        return [replace(s, advantages=tuple(islice(left, len(s.totals)))) for s in scored], metrics
