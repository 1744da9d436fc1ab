"""Worked numbers of the other estimators: two binary groups, a group of grades, and token lengths."""

import pytest

from covey.score.baselines import (
    leave_one_out_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
)

REWARDS = [1, 0, 0, 0, 1, 1, 0, 1]
IDS = [0] * 4 + [1] * 4
LENGTHS = [2, 4, 1, 3, 5, 1, 2, 2]


def close(values):
    return pytest.approx(values, abs=1e-6)


def test_rloo():
    third = 1 / 3
    assert rloo_advantages(REWARDS, IDS) == close([1, -third, -third, -third, third, third, -1, third])
    # R - mean of the others, by hand
    assert rloo_advantages([1.0, 0.5, 0.0], [0] * 3) == close([0.75, 0.0, -0.75])


def test_leave_one_out():
    # the only success (and the only failure) is not divided: its siblings agree
    got = leave_one_out_advantages(REWARDS, IDS, epsilon=1e-6)
    assert got == close([1.0, -0.577349, -0.577349, -0.577349, 0.577349, 0.577349, -1.0, 0.577349])
    # two completions: the others are one, and one has no deviation
    assert leave_one_out_advantages([1.0, 0.0], [0, 0]) == close([1.0, -1.0])


def test_maxrl():
    third = 1 / 3
    assert maxrl_advantages(REWARDS, IDS) == close([3, -1, -1, -1, third, third, -1, third])
    assert maxrl_advantages([-1.0, 0.0], [0, 0]).tolist() == [0.0, 0.0], "a mean that is not above 0"


def test_pass_at_k():
    # lead 0.5 over a deviation of 0.47871355
    got = pass_at_k_advantages([1.0, 0.5, 0.0, 0.0], [0] * 4, epsilon=1e-6)
    assert got == close([1.044464, 0, 0, 0])
    assert pass_at_k_advantages([1.0, 1.0, 0.0], [0] * 3).tolist() == [0.0, 0.0, 0.0], "no lead"


def test_opo():
    # length-weighted means 0.2 and 0.8
    assert opo_advantages(REWARDS, IDS, LENGTHS) == close([0.8, -0.2, -0.2, -0.2, 0.2, 0.2, -0.8, 0.2])


def test_reinforce_pp():
    # 20 tokens, mean 0, variance 0.171053 with the n - 1 divisor
    low, high = 0.604471, 1.813412
    assert reinforce_pp_advantages(REWARDS, IDS, LENGTHS) == close(
        [high, -low, -low, -low, low, low, -high, low]
    )


def test_reinforce_pp_recentres_over_tokens():
    # one group, lengths 1 and 3: centred ±0.5, token mean -0.25, token variance (0.5625 + 3 · 0.0625) / 3 = 0.25
    assert reinforce_pp_advantages([1.0, 0.0], [0, 0], [1, 3]) == close([1.5, -0.5])
