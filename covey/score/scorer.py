"""Groups → scored groups: every reward over every completion, then the advantages.

Rewards always see whole groups. Statistics that reach beyond a group (batch scaling, GDPO's whitening) are taken over
all ranks: the numbers of every rank are gathered, never the completions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from covey.metrics import Mean, Metric
from covey.rewards.batch import RewardBatch
from covey.score.advantages import Floats, deviation
from covey.score.attribution import contributions
from covey.score.credit import TurnCredit, discounted_returns, turn_advantages, turn_rewards
from covey.score.estimators import Estimator, Outcomes
from covey.score.shaping import Shaping
from covey.types import Gather, Group, Prompt, ScoredGroup

if TYPE_CHECKING:
    from covey.rewards.mixture import Mixture


def judged_rows(groups: Sequence[Group]) -> list[int]:
    """Return the completions that rewards are shown: not those of episodes that failed, which have nothing to be judged."""
    completions = (c for group in groups for c in group.completions)
    return [i for i, c in enumerate(completions) if c.finish != "failed"]


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
    credit: TurnCredit | None = None
    """How each turn gets an advantage of its own; None: one for the whole completion."""
    seen_sizes: Callable[[Prompt], list[tuple[int, int]]] | None = None
    """Returns the sizes that the policy saw of a prompt's pictures; None: no reward asks for them."""

    def run_rewards(
        self,
        groups: Sequence[Group],
        trainer_state: object = None,
        penalties: Sequence[float] | None = None,
        own_columns: Mapping[str, Sequence[object]] | None = None,
    ) -> tuple[list[ScoredGroup], dict[str, Metric]]:
        """Score whole groups with every reward. Nothing is gathered.

        Args:
            penalties: taken off the total of each completion before advantages are worked out. Shape (completions,).
            own_columns: what rewards get beside the columns of the prompts, a value for each completion.

        Returns:
            The groups in the order given, with advantages of 0, and what running the rewards took; for what they gave, see
            `covey.score.score_metrics`.

        Raises:
            RewardError: a reward raised or broke its contract.
        """
        batch = RewardBatch.of_groups(groups, trainer_state, own_columns, self.seen_sizes)
        judged = judged_rows(groups)
        shown = frozenset(judged)
        table = self.rewards.score(batch.select(judged), self.weights).spread(judged, len(batch))
        scored: list[ScoredGroup] = []
        start = 0
        for group in groups:
            rows = range(start, start + len(group.completions))
            start = rows.stop
            first = next((i for i in rows if i in shown), rows.start)
            scored.append(
                ScoredGroup(
                    group=group,
                    scores={name: tuple(column[i] for i in rows) for name, column in table.scores.items()},
                    totals=tuple(table.total(i) for i in rows),
                    advantages=(0.0,) * len(rows),
                    extras={name: tuple(column[i] for i in rows) for name, column in table.extras.items()},
                    # All completions of a prompt share its columns, and so its task and its weights.
                    weights={name: column[first] for name, column in table.weights.items()},
                    penalties=() if penalties is None else tuple(penalties[i] for i in rows),
                )
            )
        metrics = dict(table.metrics)
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
        returns = self._returns(scored, own.totals)
        if returns is not None:
            # Of the first turns: what the advantage of a whole completion is worked out from.
            own = replace(own, totals=np.asarray([of_turns[0] for of_turns in returns], dtype=np.float64))
        parts = self.gather(own)
        start = sum(len(part.totals) for part in parts[: self.rank])
        everything = Outcomes.joined(parts)
        advantages = self.estimate(everything)[start : start + len(own.totals)]

        shares = contributions(own.values, own.weights, own.totals, own.groups)
        metrics: dict[str, Metric] = {"advantages/mean_abs": Mean.of(np.abs(advantages))}
        for name, share in zip(names, shares, strict=True):
            metrics[f"rewards/{name}/advantage_share"] = Mean(float(share), float(shares.sum()))

        left = iter(advantages.tolist())
        done = [replace(s, advantages=tuple(islice(left, len(s.totals)))) for s in scored]
        if self.credit is not None and returns is not None:
            of_batch = deviation(everything.totals)
            by_turn = turn_advantages(returns, own.groups, self.credit.scale, of_batch)
            rest = iter(tuple(of_turns.tolist()) for of_turns in by_turn)
            done = [replace(s, turn_advantages=tuple(islice(rest, len(s.totals)))) for s in done]
        return done, metrics

    def _returns(self, scored: Sequence[ScoredGroup], totals: Floats) -> list[Floats] | None:
        """Return what each turn of each completion still earns; None without turn credit."""
        if self.credit is None:
            return None
        each = [(s, i) for s in scored for i in range(len(s.totals))]
        return [
            discounted_returns(
                turn_rewards(
                    [(s.weights[name], column[i]) for name, column in s.scores.items()],
                    float(total),
                    len(s.group.completions[i].turns or ()),
                ),
                self.credit.discount,
            )
            for (s, i), total in zip(each, totals, strict=True)
        ]
