"""Groups that grow: the mean of the gradient over all outcomes, enumerated, is the exact gradient of the expected reward.

A step of a few prompts, whose policies choose among two or three answers. Every outcome of the step (all first completions, and all
later ones of the groups that then grow) is listed with its probability; no random number is drawn.
"""

from functools import cache
from itertools import product
from math import nan

import numpy as np
import pytest

from covey.score.allocation import chances, grown_advantages, grown_sizes, shares
from covey.types import Growth

BINARY = [(1.0, 0.0)] * 3
LOGITS = [(0.8, -0.3, 0.1), (-1.1, 0.4, 0.9), (1.7, 0.2, -0.6)]


def policy(logits, count):
    odds = np.exp(np.asarray(logits[:count]))
    return odds / odds.sum()


def exact_gradient(probabilities, values):
    """∇E[r] with respect to the logits; of rewards that some answers have, P(scored)² ∇E[r | scored]."""
    r, p = np.asarray(values), probabilities
    scored = ~np.isnan(r)
    share, filled = p[scored].sum(), np.where(scored, r, 0.0)
    of_sum, of_share = p * (filled - p @ filled), p * (scored - share)
    return share * of_sum - (p @ filled) * of_share


def group_gradient(answers, probabilities, values, growth, size, estimate):
    """Σ share A ∇log π / size, as the loss of a step has it for one group."""
    advantages = estimate([values[a] for a in answers], growth)
    weights = np.asarray(shares(growth, size)) / size
    scores = np.eye(len(probabilities))[list(answers)] - probabilities
    return (weights * advantages) @ scores


def ours(rewards, growth):
    return grown_advantages(rewards, [0] * len(rewards), [growth])


def naive(rewards, growth):
    """RLOO on what happened to be sampled, each completion weighed by 1 / n whatever the shares are."""
    r = np.asarray(rewards)
    return (r - r.mean()) * r.size / (r.size - 1) / (chances(growth)[0] * r.size / growth.assured)


def mean_gradients(values, first, size, estimate=ours, least=1.0):
    """Return, for each prompt of a step, the mean of its gradient over all outcomes of the whole step."""
    policies = [policy(logits, len(v)) for logits, v in zip(LOGITS, values, strict=False)]
    is_stop = [[v >= least for v in of_prompt] for of_prompt in values]
    total = [np.zeros(len(v)) for v in values]

    @cache
    def over_later(p, answers, n, assured):
        """The mean over what group `p` gets after its first answers."""
        mean = np.zeros(len(policies[p]))
        for more in product(range(len(policies[p])), repeat=n - len(answers)):
            every = answers + more
            growth = Growth(first, assured, tuple(is_stop[p][a] for a in every))
            gradient = group_gradient(every, policies[p], values[p], growth, size, estimate)
            mean += policies[p][list(more)].prod() * gradient
        return mean

    for outcome in product(*(product(range(len(v)), repeat=first) for v in values)):
        solved = [all(is_stop[p][a] for a in answers) for p, answers in enumerate(outcome)]
        sizes, assured = grown_sizes(solved, first, size)
        assert sum(sizes) == size * len(values) and min(sizes) >= first
        chance = np.prod([policies[p][list(answers)].prod() for p, answers in enumerate(outcome)])
        for p, answers in enumerate(outcome):
            total[p] += chance * over_later(p, answers, sizes[p], assured[p])
    return total, [exact_gradient(pi, v) for pi, v in zip(policies, values, strict=True)]


CASES = {
    "right or wrong": [(1.0, 0.0), (1.0, 0.0)],
    "three prompts": [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)],
    "a penalty": [(1.0, 0.0, -1.0), (0.2, 1.0, 0.7)],
    "successes of different worth": [(1.3, 1.0, 0.0), (1.0, 2.0, 0.5)],
    "a mixture of two rewards": [(1.0 + 0.3, 1.0, 0.3), (0.0, 0.7, 1.0)],
    "an answer that nothing scores": [(1.0, 0.0, nan), (nan, 1.0, 0.0)],
    "nothing but successes": [(1.0, 1.5), (1.0, 0.0)],
    "no success at all": [(0.5, 0.0), (0.0, 0.9)],
}


@pytest.mark.parametrize("sizes", [(2, 3), (2, 4), (3, 4)], ids=str)
@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_the_mean_over_all_outcomes_is_the_exact_gradient(values, sizes):
    if len(values) == 3 and sizes == (3, 4):
        sizes = (2, 3)
    found, exact = mean_gradients(values, *sizes)
    for one, other in zip(found, exact, strict=True):
        assert one == pytest.approx(other, abs=1e-12)


def test_the_law_finds_what_is_biased():
    exact = mean_gradients(CASES["right or wrong"], 2, 4)[1]
    for wrong in (naive, lambda r, g: -ours(r, g)):
        found, _ = mean_gradients(CASES["right or wrong"], 2, 4, wrong)
        assert max(np.abs(a - b).max() for a, b in zip(found, exact, strict=True)) > 0.02


def test_shares_are_a_fair_sample_too():
    """A mean over completions, such as that of a divergence, is that of the policy."""
    cost = np.array([3.0, -1.0])
    total, policies = np.zeros(2), [policy(logits, 2) for logits in LOGITS[:2]]
    for outcome in product(product(range(2), repeat=2), repeat=2):
        sizes, assured = grown_sizes([set(answers) == {0} for answers in outcome], 2, 4)
        for p, answers in enumerate(outcome):
            chance = np.prod([policies[q][list(a)].prod() for q, a in enumerate(outcome)])
            for more in product(range(2), repeat=sizes[p] - 2):
                growth = Growth(2, assured[p], tuple(a == 0 for a in answers + more))
                mean = np.asarray(shares(growth, 4)) @ cost[list(answers + more)] / 4
                total[p] += chance * policies[p][list(more)].prod() * mean
    assert total == pytest.approx([pi @ cost for pi in policies], abs=1e-12)
