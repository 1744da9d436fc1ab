"""The advantage estimator that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from covey.score.advantages import Floats, Scale, gdpo_advantages, group_advantages
from covey.score.baselines import (
    leave_one_out_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
)

Ids = NDArray[np.int64]
Estimator = Callable[[Floats, Floats, Ids, Floats], Floats]
"""(values [completions, rewards], totals [completions], group ids, lengths) → advantages [completions].

A total of NaN leaves the completion out, whatever its values. The values are those before the weights.
"""

BASELINES: dict[str, Callable[[Floats, Ids, Floats], Floats]] = {
    "rloo": lambda totals, groups, lengths: rloo_advantages(totals, groups),
    "leave_one_out": lambda totals, groups, lengths: leave_one_out_advantages(totals, groups),
    "maxrl": lambda totals, groups, lengths: maxrl_advantages(totals, groups),
    "pass_at_k": lambda totals, groups, lengths: pass_at_k_advantages(totals, groups),
    "opo": opo_advantages,
    "reinforce_pp": reinforce_pp_advantages,
}
"""Estimators beside that of GRPO, by name; see `covey.score.baselines`."""


def estimator(
    name: str = "grpo",
    aggregation: str = "sum_then_normalize",
    scale: Scale = "group",
    weights: Sequence[float] = (),
) -> Estimator:
    """The estimator of a run.

    Args:
        name: `grpo`, or one of `BASELINES`.
        aggregation: of several rewards, for `grpo`: `sum_then_normalize`, or `normalize_then_sum` (GDPO).
        scale: what `grpo` divides by after summing.
        weights: one per reward, for `normalize_then_sum`.
    """
    if name != "grpo":
        baseline = BASELINES[name]
        return lambda values, totals, groups, lengths: baseline(totals, groups, lengths)
    if aggregation == "normalize_then_sum":
        return lambda values, totals, groups, lengths: gdpo_advantages(
            np.where(np.isnan(totals)[:, None], np.nan, values), weights, groups
        )
    return lambda values, totals, groups, lengths: group_advantages(totals, groups, scale)
