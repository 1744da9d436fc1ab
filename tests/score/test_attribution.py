"""A reward's share of the absolute advantage."""

import numpy as np
import pytest

from covey.score.attribution import contributions

NAN = float("nan")


def shares(values, weights):
    values = np.asarray(values, dtype=float)
    totals = np.nansum(values * weights, axis=1)
    groups = np.repeat(np.arange(len(values) // 4), 4)
    parts = contributions(values, weights, totals, groups)
    return (parts / parts.sum()).tolist() if parts.sum() else parts.tolist()


def test_two_rewards_of_the_same_shape_share_by_weight():
    assert shares([[1, 1], [0, 0], [0, 0], [1, 1]], [0.75, 0.25]) == pytest.approx([0.75, 0.25])


def test_a_constant_reward_trains_nothing_whatever_its_weight():
    assert shares([[1, 9], [0, 9], [0, 9], [1, 9]], [1.0, 100.0]) == pytest.approx([1.0, 0.0])


def test_a_reward_of_another_task_counts_in_its_own_groups_only():
    values = [[1, NAN], [0, NAN], [0, NAN], [1, NAN], [NAN, 1], [NAN, 0], [NAN, 0], [NAN, 1]]
    assert shares(values, [1.0, 1.0]) == pytest.approx([0.5, 0.5])


def test_without_spread_there_is_no_share():
    assert shares([[1, 1]] * 4, [1.0, 1.0]) == [0.0, 0.0]


def test_worked_numbers():
    """Rewards (1,0,0,0) and (0,0,1,1), weights 1 and 0.5: centred |.| sums are 1.5 and 0.5 × 2 = 1."""
    assert shares([[1, 0], [0, 0], [0, 1], [0, 1]], [1.0, 0.5]) == pytest.approx([0.6, 0.4])
