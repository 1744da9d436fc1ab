"""The advantage estimator that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from covey.score.advantages import Floats, gdpo_advantages, group_advantages
from covey.score.baselines import (
    leave_one_out_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
)
from covey.types import AdvantageEstimator, Aggregation, Scale


@dataclass(frozen=True)
class Outcomes:
    """What the rewards say of completions side by side."""

    values: Floats
    """Before the weights, NaN where a reward has no say. Shape (completions, rewards)."""
    weights: Floats
    """What each value is multiplied with. Shape (completions, rewards)."""
    totals: Floats
    """The reward that is judged; NaN leaves the completion out, whatever its values. Shape (completions,)."""
    groups: NDArray[np.int64]
    """Id of the prompt. Shape (completions,)."""
    lengths: Floats
    """Tokens that the policy wrote. Shape (completions,)."""

    def of(self, rows: NDArray[np.intp]) -> Outcomes:
        """Those of some completions."""
        return Outcomes(
            self.values[rows], self.weights[rows], self.totals[rows], self.groups[rows], self.lengths[rows]
        )

    @classmethod
    def of_groups(cls, groups: Sequence[Outcomes], rewards: int) -> Outcomes:
        """Those of several groups, one after another, with ids from 0; there may be none."""
        none = cls(
            np.zeros((0, rewards)), np.zeros((0, rewards)), np.zeros(0), np.zeros(0, np.int64), np.zeros(0)
        )
        numbered = [replace(g, groups=np.full(len(g.totals), n, np.int64)) for n, g in enumerate(groups)]
        parts = [none, *numbered]
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    @classmethod
    def joined(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """Those of several ranks, one after another; equal ids of different ranks are different groups."""
        return cls(
            values=np.concatenate([p.values for p in parts]),
            weights=np.concatenate([p.weights for p in parts]),
            totals=np.concatenate([p.totals for p in parts]),
            groups=np.concatenate([rank * 1_000_000 + p.groups for rank, p in enumerate(parts)]),
            lengths=np.concatenate([p.lengths for p in parts]),
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
    name: AdvantageEstimator = "grpo", aggregation: Aggregation = "sum_then_normalize", scale: Scale = "group"
) -> Estimator:
    """The estimator of a run.

    Args:
        name: `grpo`, or one of `BASELINES`.
        aggregation: of several rewards, for `grpo`: `sum_then_normalize`, or `normalize_then_sum` (GDPO).
        scale: what `grpo` divides by after summing.
    """
    if name != "grpo":
        return BASELINES[name]
    if aggregation == "normalize_then_sum":
        return _gdpo
    return lambda o: group_advantages(o.totals, o.groups, scale)


def _gdpo(outcomes: Outcomes) -> Floats:
    values = np.where(np.isnan(outcomes.totals)[:, None], np.nan, outcomes.values)
    return gdpo_advantages(values, outcomes.weights, outcomes.groups)
