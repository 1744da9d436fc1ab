"""Groups → scored groups: every reward over every completion, then the advantages.

Rewards always see whole groups. Statistics that reach beyond a group (batch scaling, GDPO's whitening) are taken over
all ranks: the numbers of every rank are exchanged, never the completions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from covey.metrics import Mean, Metric, Spread, Total, merge
from covey.rewards.batch import RewardBatch, RewardTable
from covey.rewards.contract import Reward
from covey.rewards.evaluate import evaluate
from covey.score.advantages import has_spread, rows_of
from covey.score.attribution import contributions
from covey.score.estimators import Estimator, Outcomes
from covey.score.shaping import Shaping, shaped_totals
from covey.types import Group, ScoredGroup

Gather = Callable[[Any], list[Any]]
"""Every rank's value, in the order of the ranks."""


@dataclass(frozen=True)
class Judged:
    """A group with its scores, and the numbers that its advantages come from."""

    scored: ScoredGroup
    """Its advantages are 0 until they are settled."""
    outcomes: Outcomes
    """Of this group alone, after shaping."""


@dataclass
class Scorer:
    """Scores groups with a fixed set of rewards."""

    rewards: Sequence[Reward]
    weights: Mapping[str, float] | None
    """By name; None: those that the rewards bring along."""
    estimate: Estimator
    gather: Gather = lambda value: [value]
    rank: int = 0
    shaping: Shaping = field(default_factory=Shaping)

    def score(
        self, groups: Sequence[Group], trainer_state: Any = None, penalties: Sequence[float] | None = None
    ) -> tuple[list[ScoredGroup], dict[str, Metric]]:
        """Scores, totals and advantages of whole groups: `judge`, then `settle`.

        Every rank calls it the same number of times, with or without groups of its own.
        """
        judged, metrics = self.judge(groups, trainer_state, penalties)
        scored, more = self.settle(judged)
        return scored, merge(metrics, more)

    def judge(
        self, groups: Sequence[Group], trainer_state: Any = None, penalties: Sequence[float] | None = None
    ) -> tuple[list[Judged], dict[str, Metric]]:
        """What the rewards say of whole groups; advantages are 0 until they are settled. Nothing is exchanged.

        Args:
            penalties: taken off the reward of each completion before advantages are worked out.

        Returns:
            The groups in the order given, and the metrics of this rank's share.

        Raises:
            RewardError: a reward raised or broke its contract.
        """
        table = self.table(groups, trainer_state)
        outcomes = _outcomes(table, groups)
        is_truncated = [c.is_truncated for g in groups for c in g.completions]
        shaped = shaped_totals(outcomes.totals, is_truncated, self.shaping, penalties)
        scored = list(_scored_groups(groups, table, outcomes.totals))
        rows = rows_of(outcomes.groups)
        judged = [
            Judged(s, replace(outcomes, totals=shaped).of(r)) for s, r in zip(scored, rows, strict=True)
        ]
        metrics = merge(table.metrics, reward_metrics(table, groups))
        if penalties is not None:
            metrics["reward/kl_penalty"] = Mean.of(penalties)
        return judged, metrics

    def settle(self, judged: Sequence[Judged]) -> tuple[list[ScoredGroup], dict[str, Metric]]:
        """The advantages of groups that are judged, among those of all ranks, which call it the same number of times."""
        names = [r.name for r in self.rewards]
        own = Outcomes.of_groups([j.outcomes for j in judged], len(names))
        parts = self.gather(own)
        start = sum(len(p.totals) for p in parts[: self.rank])
        advantages = self.estimate(Outcomes.joined(parts))[start : start + len(own.totals)]
        shares = contributions(own.values, own.weights, own.totals, own.groups)
        metrics = {"advantages/mean_abs": Mean.of(np.abs(advantages)), **_shares(names, shares)}
        cut = np.split(advantages, np.cumsum([len(j.scored.totals) for j in judged])[:-1]) if judged else []
        return [
            replace(j.scored, advantages=tuple(map(float, a))) for j, a in zip(judged, cut, strict=True)
        ], metrics

    def table(self, groups: Sequence[Group], trainer_state: Any = None) -> RewardTable:
        """What every reward gave every completion; no advantages (evaluation needs none)."""
        return evaluate(self.rewards, self.weights, reward_batch(groups, trainer_state))


def _shares(names: Sequence[str], parts: Any) -> dict[str, Metric]:
    """Each reward's share of the absolute advantage, as parts of one sum."""
    whole = float(parts.sum())
    return {
        f"rewards/{n}/advantage_share": Mean(float(part), whole) for n, part in zip(names, parts, strict=True)
    }


def reward_batch(groups: Sequence[Group], trainer_state: Any = None) -> RewardBatch:
    """The completions of whole groups side by side, with the prompt's columns repeated for each."""
    names = list(dict.fromkeys(name for g in groups for name in g.prompt.columns))
    repeat = [(number, g) for number, g in enumerate(groups) for _ in g.completions]
    return RewardBatch(
        prompts=[g.prompt.content for _, g in repeat],
        completions=[content for g in groups for content in g.contents()],
        completion_ids=[list(c.ids) for g in groups for c in g.completions],
        columns={name: [g.prompt.columns.get(name) for _, g in repeat] for name in names},
        group_ids=[number for number, _ in repeat],
        trainer_state=trainer_state,
    )


def reward_metrics(table: RewardTable, groups: Sequence[Group]) -> dict[str, Metric]:
    """The metrics that a scored batch adds: the weighted total, each reward alone, groups without spread."""
    outcomes = _outcomes(table, groups)
    totals, ids = outcomes.totals, outcomes.groups
    scored = [t for t in totals if not np.isnan(t)]
    spreads = [totals[rows] for rows in rows_of(ids)]
    metrics: dict[str, Metric] = {
        "reward": Mean.of(scored),
        "reward_std": Mean.of(Spread.of(g[~np.isnan(g)]).value or 0.0 for g in spreads),
        "frac_reward_zero_std": Mean.of(float(not has_spread(g)) for g in spreads),
        "reward/unscored": Mean.of(float(np.isnan(t)) for t in totals),
    }
    for name, column in table.scores.items():
        values = [s.value for s in column if s.value is not None]
        metrics[f"rewards/{name}/mean"] = Mean.of(values)
        metrics[f"rewards/{name}/std"] = Spread.of(values)
        metrics[f"rewards/{name}/count"] = Total(len(values))
        metrics[f"rewards/{name}/failed"] = Mean.of(float(s.status == "failed") for s in column)
    return metrics


def _outcomes(table: RewardTable, groups: Sequence[Group]) -> Outcomes:
    completions = [(number, c) for number, g in enumerate(groups) for c in g.completions]
    rows, names = range(len(completions)), list(table.scores)

    def column_by_column(cell: Callable[[str, int], float | None]) -> Any:
        columns = [[_nan(cell(name, row)) for row in rows] for name in names]
        return np.asarray(columns, dtype=np.float64).reshape(len(names), len(rows)).T

    return Outcomes(
        values=column_by_column(table.value),
        weights=column_by_column(table.weight),
        totals=np.asarray([_nan(table.total(row)) for row in rows], dtype=np.float64),
        groups=np.asarray([number for number, _ in completions], dtype=np.int64),
        lengths=np.asarray([sum(c.loss_mask) for _, c in completions], dtype=np.float64),
    )


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _scored_groups(groups: Sequence[Group], table: RewardTable, totals: Any) -> Iterator[ScoredGroup]:
    start = 0
    for group in groups:
        rows = range(start, start + len(group.completions))
        start = rows.stop
        yield ScoredGroup(
            group=group,
            scores={name: tuple(column[i] for i in rows) for name, column in table.scores.items()},
            totals=tuple(None if np.isnan(totals[i]) else float(totals[i]) for i in rows),
            advantages=(0.0,) * len(rows),
            extras={name: tuple(column[i] for i in rows) for name, column in table.extras.items()},
        )
