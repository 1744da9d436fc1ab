"""Groups that grow while they teach, and what keeps the gradient's mean that of equal groups.

Every prompt of a step gets `first` completions. A group is solved where all of them succeed: it gets no more, and the others share
what is left of the step's completions. So each step has as many completions as it would with equal groups.

A group whose size hangs on its own rewards is no fair sample of them: one that grew has shown a failure. What makes it fair again
is an average over what could as well have happened. The first m completions, those that a prompt would have had whatever its first
ones earned, are a fair sample. So, given all n completions and that the group came to n, is their mean over every order in which
they could have come (Rao–Blackwell):

    g = 1/(m (m-1)) Σ_i Σ_j p_ij (r_i - r_j) ∇log π(y_i)        p_ij = P(i and j are among the first m | the group grew)

Its mean is ∇E[r], whatever the rewards, the size of the groups, and what other prompts earned, which is given throughout: other
prompts decide how much a group grows, and not whether. In a group that did not grow all p_ij are 1: leave-one-out, as in RLOO.
Where all successes earn the same, it is RLOO over all n, divided by the probability that a random order of them grows.

A sum over completions that has no baseline, such as the divergence to the reference, has p_i in place of p_ij: the share of a
completion in its group, p_i / m.

Rewards of None (NaN) are in no pair. Where only some completions of a prompt have one, with probability s, the mean is s² ∇E[r | scored].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from covey.metrics import Evenness, Largest, Mean, Metric
from covey.score.advantages import Floats, has_spread, rows_of
from covey.types import Growth, ScoredGroup


def grown_sizes(solved: Sequence[bool], first: int, size: int) -> tuple[list[int], list[int]]:
    """Share out the completions of a step, `size` for each prompt on average.

    Args:
        solved: whether all first completions of each prompt succeeded.
        first: completions that each has already.

    Returns:
        The size of each group, and how many of its completions it would have had whatever its first ones earned. Where all are
        solved, all are of one size.
    """
    open_, budget = len(solved) - sum(solved), (size - first) * len(solved)
    if not open_:
        return [size] * len(solved), [size] * len(solved)
    each, rest = divmod(budget, open_)
    left = iter(range(rest))  # one more for each of the first open ones
    sizes = [first if s else first + each + (next(left, None) is not None) for s in solved]
    # Were the only open one solved too, it would have had as many as all others.
    return sizes, [size if open_ == 1 and not is_solved else first for is_solved in solved]


def chances(growth: Growth) -> tuple[Floats, Floats]:
    """Return p_i, shape (completions,), which sums to m, and p_ij of i ≠ j, shape (completions, completions)."""
    n, k, m = len(growth.stops), growth.first, growth.assured
    stops, number = np.asarray(growth.stops, dtype=bool), sum(growth.stops)
    if m == n:
        return np.ones(n), np.ones((n, n))
    ends = comb(number, k) / comb(n, k)  # the chance of an order in which the group would have been solved
    one, two = m / n, m * (m - 1) / (n * (n - 1))
    if not ends:
        return np.full(n, one), np.full((n, n), two)
    # In those orders: a success is among the first k (`early`), or it is anywhere behind them, as failures are.
    early, late = k / number, (m - k) / (n - k)
    both_early, both_late = early * (k - 1) / (number - 1), late * (m - k - 1) / max(n - k - 1, 1)
    mixed = early * late + (1 - early) * both_late
    both = both_early + 2 * (early - both_early) * late + (1 - 2 * early + both_early) * both_late
    single = np.where(stops, early + (1 - early) * late, late)
    pairs = np.where(stops[:, None] & stops, both, np.where(stops[:, None] | stops, mixed, both_late))
    return (one - ends * single) / (1 - ends), (two - ends * pairs) / (1 - ends)


def shares(growth: Growth, size: int) -> tuple[float, ...]:
    """Return the weight of each completion in its group; they sum to `size`, the completions of a group on average."""
    return tuple((chances(growth)[0] * size / growth.assured).tolist())


def grown_advantages(
    rewards: ArrayLike, groups: ArrayLike, growths: Sequence[Growth], scale: float = 1.0
) -> Floats:
    """Compute advantages whose gradient, each completion weighed by its share, has the mean of equal groups' gradient.

    Args:
        rewards: NaN where nothing scored the completion, which gets 0. Shape (completions,), as `groups` and the advantages.
        growths: of each group, in the order in which they first appear.
        scale: factor of all.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros_like(rewards)
    for rows, growth in zip(rows_of(groups), growths, strict=True):
        values = rewards[rows]
        if has_spread(values):
            single, pairs = chances(growth)
            gaps = np.nan_to_num(values[:, None] - values)  # NaN: one of the two is unscored
            advantages[rows] = scale * (pairs * gaps).sum(axis=1) / ((growth.assured - 1) * single)
    return advantages


def grown(first: ScoredGroup, more: ScoredGroup | None, growth: Growth, size: int) -> ScoredGroup:
    """Return a group with the completions that were sampled later behind its first ones, and the share of each.

    Args:
        more: of the same prompt; None: it did not grow.
        size: completions of a group on average.
    """
    if more is not None:
        none = [(None,) * len(s.totals) for s in (first, more)]
        names = dict.fromkeys(chain(first.extras, more.extras))
        first = replace(
            first,
            group=replace(first.group, completions=first.group.completions + more.group.completions),
            scores={name: first.scores[name] + more.scores[name] for name in first.scores},
            totals=first.totals + more.totals,
            advantages=first.advantages + more.advantages,
            extras={n: first.extras.get(n, none[0]) + more.extras.get(n, none[1]) for n in names},
            penalties=first.penalties + more.penalties,
        )
    return replace(first, growth=growth, shares=shares(growth, size))


def growth_metrics(groups: Sequence[ScoredGroup]) -> dict[str, Metric]:
    """Return the share of the groups that grew, the largest, and how even the shares are of the completions."""
    growths = [s.growth for s in groups if s.growth is not None]
    weights = [share for s in groups for share in s.shares]
    return {
        "allocation/grown_share": Mean.of(float(len(g.stops) > g.first) for g in growths),
        "allocation/largest_group": Largest.of(len(g.stops) for g in growths),
        "allocation/ess": Evenness(len(weights), sum(weights), sum(w * w for w in weights)),
    }
