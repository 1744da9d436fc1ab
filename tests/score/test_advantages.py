"""Worked numbers of the advantage estimators, each with its origin.

Computed in float64 from the formulas of the papers; the deviation has the n - 1 divisor and 1e-4 is added to it.
"""

import numpy as np
import pytest

from covey.score.advantages import (
    gdpo_advantages,
    group_advantages,
    has_spread,
    normalize_then_sum,
    rows_of,
)

NAN = float("nan")


def close(values, tolerance=2e-6):
    return pytest.approx(values, abs=tolerance)


G1, G2 = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]
IDS = [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("scale", "epsilon", "first", "second"),
    [
        # std of both groups 0.5
        ("group", 1e-4, [1.499700] + [-0.499900] * 3, [0.499900, 0.499900, -1.499700, 0.499900]),
        ("group", 1e-6, [1.499997] + [-0.499999] * 3, [0.499999, 0.499999, -1.499997, 0.499999]),
        # std over all eight 0.53452248
        ("batch", 1e-4, [1.402859] + [-0.467620] * 3, [0.467620, 0.467620, -1.402859, 0.467620]),
        ("none", 1e-4, [0.75] + [-0.25] * 3, [0.25, 0.25, -0.75, 0.25]),
    ],
)
def test_two_binary_groups(scale, epsilon, first, second):
    assert group_advantages(G1 + G2, IDS, scale, epsilon) == close(first + second)


def test_a_group_of_grades():
    # std 0.47871355
    expected = [1.305310, 0.261062, -0.783186, -0.783186]
    assert group_advantages([1, 0.5, 0, 0], [0] * 4) == close(expected)


def test_no_spread_is_exactly_zero_in_every_mode():
    for scale in ("group", "batch", "none"):
        assert group_advantages([-9, -9, 3, 3], [0, 0, 1, 1], scale).tolist() == [0.0] * 4


def test_a_small_spread_is_a_spread():
    # [1, 1, 1, 0.999]: std 0.0005, far above rounding; epsilon is no guard against noise of this size
    assert group_advantages([1, 1, 1, 0.999], [0] * 4) == close([0.4167] * 3 + [-1.25], 1e-4)


def test_batch_scale_starves_the_task_with_the_small_scale():
    rewards, ids = [1, 0, 0, 1, 10, 0, 5, 5], IDS  # std over all 3.615443
    assert group_advantages(rewards, ids, "batch") == close(
        [0.13829, -0.13829, -0.13829, 0.13829, 1.38292, -1.38292, 0, 0], 1e-5
    )
    assert group_advantages(rewards, ids, "group") == close(
        [0.86588, -0.86588, -0.86588, 0.86588, 1.22471, -1.22471, 0, 0], 1e-5
    )


# Two tasks; math, code and format with weights 1, 1 and 0.5 (GDPO, arXiv:2601.05242).
MIXTURE = np.array(
    [
        [1, NAN, 1], [0, NAN, 1], [0, NAN, 0], [1, NAN, 0],
        [NAN, 0.2, 1], [NAN, 0.8, 0], [NAN, 0.8, 1], [NAN, 0.2, NAN],
    ]
)  # fmt: skip
WEIGHTS = [1.0, 1.0, 0.5]


def test_normalize_then_sum_over_a_mixture():
    assert normalize_then_sum(MIXTURE, WEIGHTS, IDS) == close(
        [1.298813, -0.432938, -1.298813, 0.432938, -0.577150, 0.288525, 1.154401, -0.865775]
    )


def test_gdpo_over_a_mixture():
    assert gdpo_advantages(MIXTURE, WEIGHTS, IDS) == close(
        [1.374691, -0.458230, -1.374691, 0.458230, -0.610868, 0.305381, 1.221841, -0.916355]
    )


def test_sum_then_normalize_over_a_mixture():
    totals = [1.5, 0.5, 0.0, 1.0, 0.7, 0.8, 1.3, 0.2]
    assert np.nansum(MIXTURE * WEIGHTS, axis=1) == close(totals)
    assert group_advantages(totals, IDS) == close(
        [1.161715, -0.387238, -1.161715, 0.387238, -0.110859, 0.110859, 1.219445, -1.219445]
    )


def test_a_row_that_nothing_scored_is_out_of_mean_and_spread():
    # mean 0.933333, std 0.321455; taken for a 0 the last row would get -1.307159
    expected = [-0.725640, -0.414652, 1.140292, 0]
    assert group_advantages([0.7, 0.8, 1.3, NAN], [0] * 4) == close(expected)


def test_an_unscored_row_does_not_profit_from_negative_siblings():
    # taken for a 0 it would get +0.49993
    expected = [-0.57728, -0.57728, 0, 1.15457]
    assert group_advantages([-1, -1, NAN, 0.5], [0] * 4) == close(expected, 6e-6)


def test_a_single_scored_value_says_nothing():
    for scale in ("group", "batch", "none"):
        got = group_advantages([0.3, NAN, NAN, NAN, 1, 0, NAN, NAN], IDS, scale)
        assert got[:4].tolist() == [0.0] * 4
        assert got[4] == -got[5] > 0


def test_two_rewards_of_one_group_keep_apart_what_their_sum_confounds():
    # (0,0) against (1,0), and (0,0) against (1,1): the sum gives ±0.707 for both
    one = normalize_then_sum([[0, 0], [1, 0]], [1, 1], [0, 0])
    both = normalize_then_sum([[0, 0], [1, 1]], [1, 1], [0, 0])
    assert one == close([-0.70701, 0.70701], 5e-6)
    assert both == close([-1.41401, 1.41401], 6e-6)
    assert group_advantages([0, 1], [0, 0]) == close([-0.70701, 0.70701], 5e-6)
    assert group_advantages([0, 2], [0, 0]) == close([-0.70706, 0.70706], 5e-6)


def test_a_reward_is_normalised_before_it_is_weighed():
    values, weights = [[0, 1], [0, 1], [0, 1], [1, 0]], [0.7, 0.3]
    apart = normalize_then_sum(values, weights, [0] * 4)
    assert apart == close([-0.19996] * 3 + [0.59988], 1e-5)
    totals = np.asarray(values) @ np.asarray(weights)
    assert group_advantages(totals, [0] * 4) == close([-0.49975] * 3 + [1.49925], 1e-5)
    # None in another prompt changes nothing here
    more = normalize_then_sum([*values, [0, NAN], [1, NAN]], weights, [0] * 4 + [1] * 2)
    assert more[:4].tolist() == apart.tolist()


def test_weighted_totals():
    # f1 (1,0,1,0), f2 (0,0,1,1), weights 0.7 and 0.3
    assert group_advantages([0.7, 0.0, 1.0, 0.3], [0] * 4) == close(
        [0.45476, -1.13689, 1.13689, -0.45476], 6e-6
    )


def test_two_tasks_in_a_batch_are_each_as_if_alone():
    both = [[1, NAN], [0, NAN], [1, NAN], [0, NAN], [NAN, 0], [NAN, 0], [NAN, 1], [NAN, 1]]
    totals = np.nansum(both, axis=1)
    alone = group_advantages([1, 0, 1, 0], [0] * 4)
    assert alone == close([0.86588, -0.86588, 0.86588, -0.86588], 1e-5)
    assert group_advantages(totals, IDS)[:4].tolist() == alone.tolist()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_rounding_noise_is_no_spread(scale):
    noisy = np.asarray([1.0, 1.0, 0.99999994, 1.0], dtype=np.float32)
    assert group_advantages(noisy, [0] * 4, scale).tolist() == [0.0] * 4
    same = np.full(8, 0.1, dtype=np.float32)
    assert group_advantages(same, [0] * 8, scale).tolist() == [0.0] * 8
    one_better = np.asarray([0.35] * 7 + [0.95], dtype=np.float32)
    assert np.abs(group_advantages(one_better, [0] * 8, scale)).max() < 10


def test_noise_is_relative_to_the_size_of_the_rewards():
    assert not has_spread(np.asarray([1e6, 1e6 + 0.1]))
    assert has_spread(np.asarray([1e-6, 2e-6]))
    assert not has_spread(np.asarray([0.1 + 0.2 - 0.3, 0.0]))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_groups_go_by_id_whatever_their_size_and_order(scale):
    # groups of 4, 3 and 4; the second has no spread
    rewards = [1, 0, 0, 1, 5, 5, 5, 0, 0, 0, 1]
    ids = [7] * 4 + [3] * 3 + [9] * 4
    got = group_advantages(rewards, ids, scale)
    assert got[4:7].tolist() == [0.0] * 3
    order = [8, 0, 4, 9, 1, 5, 10, 2, 6, 7, 3]
    mixed = group_advantages([rewards[i] for i in order], [ids[i] for i in order], scale)
    assert mixed == pytest.approx(got[order], rel=1e-12)


def test_rows_of_a_group_come_in_the_order_of_their_first_appearance():
    assert [r.tolist() for r in rows_of([5, 2, 5, 9, 2])] == [[0, 2], [1, 4], [3]]
