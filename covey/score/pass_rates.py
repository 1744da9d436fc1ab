"""A memory of pass rates: for each prompt, how its completions did, and how sure that is.

    p ~ Beta(κ m + s, κ (1 − m) + n − s)

n completions were scored, s of them passed; both are halved every `half_life` rollouts, for the policy that they were drawn from is
gone: what is known of a prompt widens with its age, towards what is known of its pool. m is the pass rate of the pool (its
task), κ how many completions that counts as. A reward that is no verdict counts as a pass in part: its place in the range of the rewards
that the pool has seen, which begins as [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey.types import ScoredGroup

Floats = NDArray[np.float64]

PRIOR = 1.0
"""Completions that the pass rate of a pool counts as, κ. Few: prompts of a pool differ, many are passed nearly always or never."""


class Evidence(NamedTuple):
    """The word of a group on its prompt."""

    row: int
    scored: int
    """Completions that have a reward."""
    total: float
    """Sum of their rewards."""
    low: float
    high: float
    """The least and the highest of them."""

    @classmethod
    def of(cls, scored: Sequence[ScoredGroup]) -> list[Evidence]:
        """Return the evidence of scored groups; none of groups that nothing scored."""
        totals = [(s.group.prompt.row, [t for t in s.totals if t is not None]) for s in scored]
        return [cls(row, len(own), sum(own), min(own), max(own)) for row, own in totals if own]


class PassRates:
    """The pass rates of the prompts of a dataset.

    Args:
        rows: numbers of the rows that may be drawn, ascending.
        pools: the pool of each of them.
        half_life: rollouts in which evidence loses half of its weight.
    """

    def __init__(self, rows: Sequence[int], pools: Sequence[str], half_life: float) -> None:
        self.rows, self.half_life = np.asarray(rows, dtype=np.int64), half_life
        names, self.pools = np.unique(np.asarray(pools, dtype=str), return_inverse=True)
        self.counts, self.totals = np.zeros(len(rows)), np.zeros(len(rows))
        self.at = np.zeros(len(rows), dtype=np.int64)
        """The rollout at which counts and totals are what they are."""
        self.low, self.high = np.zeros(len(names)), np.ones(len(names))

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Whether anything is known of a row. Shape (rows,)."""
        return self.counts > 0

    def forget(self) -> None:
        """Forget everything."""
        for known in (self.counts, self.totals, self.at, self.low):
            known[:] = 0
        self.high[:] = 1

    def learn(self, number: int, evidence: Iterable[Evidence]) -> None:
        """Take in what the groups of rollout `number` said; of rows that are not there, nothing."""
        for e in evidence:
            place = int(np.searchsorted(self.rows, e.row))
            if place == len(self.rows) or self.rows[place] != e.row:
                continue
            kept = 0.5 ** ((number - int(self.at[place])) / self.half_life)
            self.counts[place] = self.counts[place] * kept + e.scored
            self.totals[place] = self.totals[place] * kept + e.total
            self.at[place], pool = number, self.pools[place]
            self.low[pool], self.high[pool] = min(self.low[pool], e.low), max(self.high[pool], e.high)

    def posterior(self, number: int) -> tuple[Floats, Floats]:
        """Return the parameters of each row's Beta distribution when rollout `number` is drawn. Shape (rows,) each."""
        kept = 0.5 ** ((number - self.at) / self.half_life)
        counts, low, high = self.counts * kept, self.low[self.pools], self.high[self.pools]
        passed = np.clip((self.totals * kept - counts * low) / (high - low), 0.0, counts)
        of_pool = (
            np.bincount(self.pools, passed, len(self.low)),
            np.bincount(self.pools, counts, len(self.low)),
        )
        rate = ((1 + of_pool[0]) / (2 + of_pool[1]))[self.pools]
        return PRIOR * rate + passed, PRIOR * (1 - rate) + counts - passed

    def state(self) -> dict[str, list[float]]:
        """Return what has been learned, of the rows that were seen."""
        seen = np.flatnonzero(self.seen)
        names = ("rows", "counts", "totals", "at")
        own = {name: getattr(self, name)[seen].tolist() for name in names}
        return {**own, "low": self.low.tolist(), "high": self.high.tolist(), "of": [len(self.rows)]}

    def restore(self, state: Mapping[str, Sequence[float]]) -> bool:
        """Take over what `state` returned; return False, and change nothing, where that was of other rows or pools."""
        rows = np.asarray(state["rows"], dtype=np.int64)
        places = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        is_same = list(state["of"]) == [len(self.rows)] and len(state["low"]) == len(self.low)
        if not (is_same and np.array_equal(self.rows[places], rows)):
            return False
        self.forget()
        for name in ("counts", "totals", "at"):
            getattr(self, name)[places] = state[name]
        self.low[:], self.high[:] = state["low"], state["high"]
        return True


def teaching(passes: Floats, failures: Floats, completions: int) -> Floats:
    """Return the probability that so many completions of a prompt do not all agree, 1 − E[p^n] − E[(1 − p)^n] for p ~ Beta.

    With 2 completions it is 2 E[p (1 − p)], in proportion to the variance of a verdict.

    Args:
        passes, failures: parameters of each prompt's Beta distribution. Shape (prompts,).
    """
    agree = [np.ones_like(passes), np.ones_like(failures)]
    for k in range(completions):
        agree[0] *= (passes + k) / (passes + failures + k)
        agree[1] *= (failures + k) / (passes + failures + k)
    return np.clip(1 - agree[0] - agree[1], 0.0, 1.0)
