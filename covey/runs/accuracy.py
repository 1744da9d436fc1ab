"""The worth of a reward on one evaluation, and a test of two evaluations. The log, the report and `covey eval` ask here.

The values of an evaluation come by prompt: one list per prompt, one number per completion that was scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from covey.runs.statistics import (
    Interval,
    PairedTest,
    bootstrap_interval,
    paired_test,
    pass_at_k,
    wilson_interval,
)

ValuesByPrompt = Sequence[Sequence[float]]
"""Values of the scored completions of each prompt."""


@dataclass(frozen=True, slots=True)
class RewardEstimate:
    """Mean of one reward over an evaluation."""

    interval: Interval
    """The mean over all scored completions, and 95 % around it."""
    method: str
    """Name of the way in which the interval was found, for people."""
    pass_at: dict[int, float]
    """Unbiased pass@k for k = 1, 2, 4, ... up to the smallest group; empty unless all values are 0 or 1."""
    prompts: int
    """Prompts with at least one scored completion."""
    completions: int


def estimate_reward(by_prompt: ValuesByPrompt) -> RewardEstimate | None:
    """Return the mean with its interval, and pass@k; None where nothing was scored.

    The mean weighs a prompt by its scored completions, as the mean in the log does; prompts without one are left out. The
    interval resamples whole prompts, since completions of one prompt resemble each other. Where each prompt has one
    verdict, it is Wilson's, which keeps a width when all or none are right.
    """
    kept = [values for values in by_prompt if values]
    if not kept:
        return None
    sizes = [len(values) for values in kept]
    are_verdicts = all(value in (0.0, 1.0) for values in kept for value in values)
    if are_verdicts and max(sizes) == 1:
        interval, method = wilson_interval(sum(values[0] for values in kept), len(kept)), "Wilson"
    else:
        means = [sum(values) / len(values) for values in kept]
        interval, method = bootstrap_interval(means, sizes), "bootstrap over prompts"
    powers = [2**i for i in range(min(sizes).bit_length())] if are_verdicts and min(sizes) > 1 else []
    pass_at = {k: sum(pass_at_k(len(v), int(sum(v)), k) for v in kept) / len(kept) for k in powers}
    return RewardEstimate(interval, method, pass_at, len(kept), sum(sizes))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One reward of two policies on the same prompts."""

    before: float
    after: float
    """Means over the prompts that both have a value for; each prompt counts once. NaN where there is none."""
    test: PairedTest


def compare_prompts(before: ValuesByPrompt, after: ValuesByPrompt) -> Comparison:
    """Return a paired test of two policies that were asked the same prompts in the same order.

    A prompt's value is the mean over its scored completions. Prompts count once each: a pair is one observation, however many
    completions it has. A prompt that either side has no value for is left out.

    Raises:
        ValueError: the two have different numbers of prompts.
    """
    a, b = ([sum(v) / len(v) if v else math.nan for v in side] for side in (before, after))
    test = paired_test(a, b)
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if not (math.isnan(x) or math.isnan(y))]
    if not pairs:
        return Comparison(math.nan, math.nan, test)
    return Comparison(sum(x for x, _ in pairs) / len(pairs), sum(y for _, y in pairs) / len(pairs), test)
