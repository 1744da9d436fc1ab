"""Multipliers of rewards with a bound: worked numbers, the optimum that they lead to, and what scaling makes of them."""

import itertools
import json
import math

import numpy as np
import pytest

from covey.rewards.bounds import Bound
from covey.score.advantages import gdpo_advantages, group_advantages
from covey.score.constraints import Multiplier, Multipliers, mean_of, observed
from covey.types import Completion, Group, Prompt, Score, ScoredGroup

AT_LEAST = Bound(limit=0.8, sign=1, step=0.1, damping=2.0, largest=10.0)


def test_a_multiplier_by_hand():
    """s' = clip(s + 0.5 v), λ' = clip(s' + 2 v), both in [0, 3]: worked out on paper."""
    bound = Bound(0.9, 1, step=0.5, damping=2.0, largest=3.0)
    steps = [
        (0.4, (0.2, 1.0)),  # 0 + 0.5 · 0.4; 0.2 + 2 · 0.4
        (0.2, (0.3, 0.7)),
        (-0.1, (0.25, 0.05)),
        (-0.2, (0.15, 0.0)),  # 0.15 - 0.4 is below 0
        (-0.5, (0.0, 0.0)),  # and so is 0.15 - 0.25
        (2.0, (1.0, 3.0)),  # 1 + 4 is above 3
        (9.0, (3.0, 3.0)),  # the sum stops too, so that it comes back at once
        (-1.0, (2.5, 0.5)),
    ]
    multiplier = Multiplier()
    for violation, (ascent, value) in steps:
        multiplier = multiplier.after(violation, bound)
        assert (multiplier.ascent, multiplier.value) == pytest.approx((ascent, value))


@pytest.mark.parametrize(
    ("sign", "mean", "violation"), [(1, 0.5, 0.3), (1, 0.9, -0.1), (-1, 0.5, -0.3), (-1, 0.9, 0.1)]
)
def test_the_violation_is_the_distance_on_the_wrong_side(sign, mean, violation):
    bound = Bound(0.8, sign, 0.1, 0.0, 10.0)
    multipliers = Multipliers({"c": bound})
    metrics = multipliers.learn([{"c": [(mean, 1.0)]}])
    assert metrics["constraints/c/violation"].value == pytest.approx(violation)
    assert metrics["constraints/c/value"].value == mean
    assert multipliers.weights() == {"c": pytest.approx(sign * max(0.0, 0.1 * violation))}


def test_a_reward_that_applied_nowhere_keeps_its_multiplier():
    multipliers = Multipliers({"c": AT_LEAST})
    multipliers.learn([{"c": [(0.0, 1.0)]}])
    before = multipliers.state()
    metrics = multipliers.learn([{"c": []}, {}])
    assert multipliers.state() == before and before["c"][1] > 0
    assert metrics["constraints/c/value"].value is None


def test_the_mean_is_the_same_number_however_processes_share_the_samples():
    """0.1 and 1e16 in every order and cut: added up one after the other they differ in the last digits."""
    values = [(0.1, 1.0), (1e16, 1.0), (-1e16, 1.0), (0.7, 0.5)]
    found = set()
    for order in itertools.permutations(values):
        for at in range(5):
            multipliers = Multipliers({"c": AT_LEAST})
            metrics = multipliers.learn([{"c": order[:at]}, {"c": order[at:]}])
            found.add((metrics["constraints/c/value"].value, multipliers.present["c"]))
    assert len(found) == 1 and found.pop()[0] == math.fsum([0.1, 0.35]) / 3.5


def test_what_counts_is_what_the_multiplier_prices():
    """A gated score counts as 0; None and a failure do not count; where groups grow, completions count by their shares."""
    completions = tuple(Completion((1,), (-1.0,), "", "stop") for _ in range(4))
    scores = (Score(1.0), Score(None, "gated"), Score(None, "not_applicable"), Score(None, "failed", "why"))
    group = ScoredGroup(
        Group(Prompt("", (1,)), completions), {"c": scores, "d": scores}, (1.0, 0.0, 0.0, None), (0.0,) * 4
    )
    assert observed([group], ["c"]) == {"c": [(1.0, 1.0), (0.0, 1.0)]}
    assert mean_of(observed([group], ["c"])["c"]) == 0.5
    grown = ScoredGroup(
        **{n: getattr(group, n) for n in ("group", "scores", "totals", "advantages")}, shares=(0.5, 1.5, 1, 1)
    )
    assert mean_of(observed([grown], ["c"])["c"]) == 0.25


def test_what_was_learned_comes_back_to_the_bit_and_not_to_other_rewards():
    one, other = Multipliers({"c": AT_LEAST}), Multipliers({"c": AT_LEAST})
    for value in (0.1, 0.7, 1 / 3):
        one.learn([{"c": [(value, 1.0)]}])
    assert other.restore(json.loads(json.dumps(one.state())))
    assert other.present == one.present and other.weights() == one.weights()
    assert not Multipliers({"d": AT_LEAST}).restore(one.state())
    assert not Multipliers({}).restore(one.state())


# --- a problem that can be worked out: two actions, exact gradients ---------------------------------------------------------

PAYS = np.array([1.0, 0.0])
"""Reward of the two actions: without a bound the policy takes the first alone."""
PROBLEMS = {
    "at least": (Bound(0.8, 1, 0.1, 2.0, 10.0), np.array([0.2, 1.0]), 1.25),
    "at most": (Bound(1.5, -1, 0.1, 2.0, 10.0), np.array([3.0, 1.0]), 0.5),
}
"""Bound, reward that it is on, and its multiplier at the optimum: both are met where the second action has probability 3/4.

There the Lagrangian is flat: the first action is worth as much as the second, 1 = λ 0.8, and 1 = λ 2.
"""


def solved(bound, constrained, rounds=3000, rate=1.0):
    """The probability of the second action and the multiplier, round by round; gradients are exact."""
    theta, multipliers, seen = 0.0, Multipliers({"c": bound}), []
    for _ in range(rounds):
        second = 1 / (1 + math.exp(-theta))
        totals = PAYS + multipliers.weights()["c"] * constrained
        seen.append((second, multipliers.present["c"].value))
        theta += rate * second * (1 - second) * (totals[1] - totals[0])
        multipliers.learn([{"c": list(zip(constrained, (1 - second, second), strict=True))}])
    return np.array(seen)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_bound_is_met_at_the_end_and_its_multiplier_is_the_price_of_it(problem):
    bound, constrained, price = PROBLEMS[problem]
    seen = solved(bound, constrained)
    assert seen[-1] == pytest.approx((0.75, price), abs=1e-3)
    free = solved(Bound(bound.limit, bound.sign, 1e-12, 0.0, 1e-9), constrained)
    assert free[-1, 0] < 0.01  # the optimum without a bound breaks it


@pytest.mark.parametrize("problem", PROBLEMS)
def test_with_the_sign_the_other_way_the_bound_is_missed(problem):
    """Then what the bound is on is paid for being missed, or nothing is learned at all."""
    bound, constrained, _ = PROBLEMS[problem]
    flipped = Bound(bound.limit, -bound.sign, bound.step, bound.damping, bound.largest)
    assert solved(flipped, constrained)[-1, 0] < 0.1


def test_a_bound_with_room_ends_with_a_multiplier_of_0():
    """At first half of the actions are the second one; the other reward alone brings them below a quarter."""
    bound = Bound(0.25, -1, 0.1, 2.0, 10.0)
    seen = solved(bound, np.array([0.0, 1.0]))
    assert seen[1, 1] > 0 and (seen[-1000:, 1] == 0).all() and seen[-1, 0] < 0.01


def test_damping_is_what_ends_the_swinging():
    bound, constrained, _ = PROBLEMS["at least"]
    plain = Bound(bound.limit, bound.sign, bound.step, 0.0, bound.largest)
    late = solved(plain, constrained)[-500:, 0]
    assert late.max() - late.min() > 0.3
    late = solved(bound, constrained)[-500:, 0]
    assert late.max() - late.min() < 0.01


# --- what scaling makes of a multiplier -------------------------------------------------------------------------------------

ALONE, BOTH = np.array([1.0, 0.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.0, 0.0])
"""Values of a reward with a bound, and of another reward."""
GROUP = np.zeros(4, dtype=int)


def advantages(multiplier, other, scale, unit=1.0):
    return group_advantages(other + multiplier * unit * ALONE, GROUP, scale)


def test_divided_by_the_deviation_of_a_group_a_small_multiplier_pushes_like_a_large_one_where_nothing_else_differs():
    small, large = (advantages(m, np.zeros(4), "group") for m in (0.1, 10.0))
    assert small == pytest.approx(large, rel=0.01) and abs(small).max() > 0.8
    small, large = (advantages(m, np.zeros(4), "none") for m in (0.1, 10.0))
    assert 100 * small == pytest.approx(large)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("multiplier", [0.3, 4.0])
def test_within_a_group_it_is_the_exchange_rate_of_the_two_rewards(scale, multiplier):
    """The first completion has both, the second the other reward, the fourth that with the bound: from (1, 0) to (0, 1) is 1 - λ."""
    found = advantages(multiplier, BOTH, scale)
    gaps = found - found[2]
    assert gaps[3] / gaps[1] == pytest.approx(multiplier)


def test_with_normalize_then_sum_it_prices_deviations_and_not_units():
    def push(unit, multiplier=0.5):
        values = np.stack([BOTH, unit * ALONE], axis=1)
        found = gdpo_advantages(values, np.array([1.0, multiplier]), GROUP)
        return (found[3] - found[2]) / (found[1] - found[2])

    assert push(1.0) == pytest.approx(0.5, rel=1e-3) and push(500.0) == pytest.approx(0.5, rel=1e-3)
    found = advantages(0.5, BOTH, "none", unit=500.0)
    assert (found[3] - found[2]) / (found[1] - found[2]) == pytest.approx(250.0)
