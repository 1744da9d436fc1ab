"""The advantage estimators by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.score.advantages import Floats, gdpo_advantages, group_advantages
from covey.score.allocation import grown_advantages
from covey.score.baselines import (
    leave_one_out_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
)
from covey.score.shaping import Shaping, shaped_totals
from covey.types import AdvantageEstimator, Aggregation, Growth, Scale, ScoredGroup


@dataclass(frozen=True)
class Outcomes:
    """Scores of completions side by side, as arrays."""

    values: Floats
    """Before the weights, NaN where a reward has none. Shape (completions, rewards)."""
    weights: Floats
    """Factor of each value. Shape (completions, rewards)."""
    totals: Floats
    """Weighted sums after shaping; NaN leaves the completion out, whatever its values. Shape (completions,)."""
    groups: NDArray[np.int64]
    """Id of the prompt. Shape (completions,)."""
    lengths: Floats
    """Tokens that the policy wrote. Shape (completions,)."""
    growths: tuple[Growth, ...] = ()
    """Of each group, in order; empty where all are of one size."""

    @classmethod
    def of(cls, scored: Sequence[ScoredGroup], names: Sequence[str], shaping: Shaping) -> Outcomes:
        """Return the outcomes of scored groups, one group after another, with ids from 0; there may be none.

        Args:
            names: of the rewards, in the order of the columns.
        """
        sizes = [len(s.totals) for s in scored]
        completions = [c for s in scored for c in s.group.completions]
        # (rewards, completions) until transposed, so that no groups and no rewards have their shapes too
        values = [[s.scores[name][i].counted for s in scored for i in range(len(s.totals))] for name in names]
        weights = [np.repeat([s.weights[name] for s in scored], sizes) for name in names]
        shape = (len(names), len(completions))
        penalties = [p for s in scored for p in s.penalties or (0.0,) * len(s.totals)]
        return cls(
            values=np.asarray(values, dtype=np.float64).reshape(shape).T,
            weights=np.asarray(weights, dtype=np.float64).reshape(shape).T,
            totals=shaped_totals(
                np.asarray([t for s in scored for t in s.totals], dtype=np.float64),
                [c.is_truncated for c in completions],
                shaping,
                penalties,
            ),
            groups=np.repeat(np.arange(len(scored), dtype=np.int64), sizes),
            lengths=np.asarray([sum(c.loss_mask) for c in completions], dtype=np.float64),
            growths=tuple(s.growth for s in scored if s.growth is not None),
        )

    @classmethod
    def joined(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """Return the outcomes of several ranks, one after another; equal ids of different ranks are different groups."""
        return cls(
            values=np.concatenate([p.values for p in parts]),
            weights=np.concatenate([p.weights for p in parts]),
            totals=np.concatenate([p.totals for p in parts]),
            groups=np.concatenate([rank * 1_000_000 + p.groups for rank, p in enumerate(parts)]),
            lengths=np.concatenate([p.lengths for p in parts]),
            growths=tuple(growth for p in parts for growth in p.growths),
        )


Estimator = Callable[[Outcomes], Floats]
"""Outcomes → one advantage per completion."""

BASELINES: dict[AdvantageEstimator, Estimator] = {
    "rloo": lambda o: rloo_advantages(o.totals, o.groups),
    "leave_one_out": lambda o: leave_one_out_advantages(o.totals, o.groups),
    "maxrl": lambda o: maxrl_advantages(o.totals, o.groups),
    "pass_at_k": lambda o: pass_at_k_advantages(o.totals, o.groups),
    "opo": lambda o: opo_advantages(o.totals, o.groups, o.lengths),
    "reinforce_pp": lambda o: reinforce_pp_advantages(o.totals, o.groups, o.lengths),
}
"""Estimators beside that of GRPO, by name; see `covey.score.baselines`."""


def estimator(
    name: AdvantageEstimator = "grpo",
    aggregation: Aggregation = "sum_then_normalize",
    scale: Scale = "group",
) -> Estimator:
    """Return the estimator of a run.

    Args:
        name: `grpo`, or one of `BASELINES`.
        aggregation: of several rewards, for `grpo`: `sum_then_normalize`, or `normalize_then_sum` (GDPO).
        scale: what `grpo` divides by after summing.
    """
    if name != "grpo":
        return BASELINES[name]
    if aggregation == "sum_then_normalize":
        return lambda o: group_advantages(o.totals, o.groups, scale)
    return lambda o: gdpo_advantages(
        np.where(np.isnan(o.totals)[:, None], np.nan, o.values), o.weights, o.groups
    )


def growing_estimator(name: AdvantageEstimator, size: int) -> Estimator:
    """Return the estimator of a run in which groups grow to `size` on average: `rloo`, or `grpo` that divides by nothing.

    The mean of the latter, whose baseline counts the completion itself, is (size - 1) / size of RLOO's.
    """
    factor = {"rloo": 1.0, "grpo": (size - 1) / size}[name]
    return lambda o: grown_advantages(o.totals, o.groups, o.growths, factor)
