"""Rewards under constraints: the others are maximised while the means of these keep their bounds.

    maximise E[R]  subject to  E[c_k] ≥ b_k          (at most b: the same of -c and -b)

A policy that does so also maximises the Lagrangian E[R] + Σ λ_k (E[c_k] - b_k), under multipliers λ_k ≥ 0 that are above 0 only where the bound is
met exactly. So c_k is a reward of weight λ_k, and λ_k is learned: it rises while the bound is missed, and falls while there is room.

    v_n = b - mean of c in rollout n                              violation
    s_n+1 = clip(s_n + step v_n, 0, largest)                      dual ascent
    λ_n+1 = clip(s_n+1 + damping v_n, 0, largest)

Ascent alone swings: the policy answers to λ, and λ to the policy, a quarter of a turn apart. The last term looks at the present alone and damps that.
Source: Stooke, Achiam and Abbeel (arXiv:2007.03964, algorithm 2), a PID controller without its D.
Departures: the sum and λ are bounded, so that a bound which cannot be met does not grow without end; both begin at 0, so that a
bound that is never missed changes nothing.

What λ_k prices is what the bound is on: a gated score counts as 0, None and failures do not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

from covey.metrics import Mean, Metric
from covey.rewards.bounds import Bound
from covey.types import ScoredGroup

Observed = Mapping[str, Sequence[tuple[float, float]]]
"""By reward with a bound: (value, what it counts as) of each completion that it applies to."""


@dataclass(frozen=True)
class Multiplier:
    """Hold what a reward with a bound weighs, and the sum of violations behind it."""

    ascent: float = 0.0
    value: float = 0.0

    def after(self, violation: float, bound: Bound) -> Multiplier:
        """Return the multiplier that follows a rollout whose mean missed the bound by `violation`; below 0: there was room."""
        ascent = _clipped(self.ascent + bound.step * violation, bound.largest)
        return Multiplier(ascent, _clipped(ascent + bound.damping * violation, bound.largest))


def _clipped(value: float, largest: float) -> float:
    return min(max(value, 0.0), largest)


def mean_of(observed: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean of values, each of which counts as its share; None of none. Their order changes no bit."""
    pairs = list(observed)
    count = math.fsum(share for _, share in pairs)
    return math.fsum(value * share for value, share in pairs) / count if count else None


def observed(scored: Sequence[ScoredGroup], names: Collection[str]) -> dict[str, list[tuple[float, float]]]:
    """Return what groups say of the means of these rewards; where groups grow, completions count by their shares."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for group in scored:
        shares = group.shares or (1.0,) * len(group.totals)
        for name, pairs in found.items():
            counted = zip(group.scores[name], shares, strict=True)
            pairs += [(score.counted, share) for score, share in counted if score.counted is not None]
    return found


class Multipliers:
    """The multipliers of a run.

    Args:
        bounds: by name of the rewards that have one.
    """

    def __init__(self, bounds: Mapping[str, Bound]) -> None:
        self.bounds = bounds
        self.present = {name: Multiplier() for name in bounds}

    def weights(self) -> dict[str, float]:
        """Return the weight that each reward with a bound has in a rollout that begins now."""
        return {name: bound.sign * self.present[name].value for name, bound in self.bounds.items()}

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics of a rollout that begins now."""
        found: dict[str, Metric] = {}
        for name, bound in self.bounds.items():
            value = self.present[name].value
            found[f"constraints/{name}/multiplier"] = Mean(value)
            found[f"constraints/{name}/at_max"] = Mean(float(value >= bound.largest))
        return found

    def learn(self, of_ranks: Sequence[Observed]) -> dict[str, Metric]:
        """Take in what a rollout showed, that of every process, and return its metrics. A reward that applied nowhere keeps its multiplier."""
        found: dict[str, Metric] = {}
        for name, bound in self.bounds.items():
            mean = mean_of(pair for part in of_ranks for pair in part.get(name, ()))
            found[f"constraints/{name}/value"] = Mean(mean or 0.0, float(mean is not None))
            violation = 0.0 if mean is None else bound.sign * (bound.limit - mean)
            found[f"constraints/{name}/violation"] = Mean(violation, float(mean is not None))
            if mean is not None:
                self.present[name] = self.present[name].after(violation, bound)
        return found

    def state(self) -> dict[str, tuple[float, float]]:
        """Return what was learned, as JSON holds it."""
        return {name: astuple(multiplier) for name, multiplier in self.present.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> bool:
        """Take over what `state` returned; return False, and change nothing, where that was of other rewards."""
        if state.keys() != self.bounds.keys():
            return False
        self.present = {name: Multiplier(*values) for name, values in state.items()}
        return True
