"""Intervals and tests against worked numbers, slow references, and the coverage they promise."""

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.runs.statistics import (
    bootstrap_interval,
    mcnemar,
    mean_interval,
    paired_test,
    pass_at_k,
    student_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        # Solved by hand from (p - s)² = z² s (1 - s) / n, the equation whose roots the interval is, z = 1.959964.
        (8, 10, 0.49016, 0.94332),
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        (1, 2, 0.09453, 0.90547),
    ],
)
def test_wilson_interval_worked_numbers(successes, count, low, high):
    interval = wilson_interval(successes, count)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))
    assert interval.estimate == successes / count


@given(st.integers(1, 400), st.data())
def test_the_ends_of_wilsons_interval_solve_its_equation(count, data):
    successes = data.draw(st.integers(0, count))
    interval = wilson_interval(successes, count)
    assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
    for end in {interval.low, interval.high} - {0.0, 1.0}:
        assert (interval.estimate - end) ** 2 == pytest.approx(
            1.959964**2 * end * (1 - end) / count, rel=1e-4, abs=1e-12
        )


def test_wilson_refuses_impossible_counts_and_says_nothing_of_no_data():
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson_interval(3, 2)
    assert math.isnan(wilson_interval(0, 0).estimate)


@pytest.mark.parametrize(
    ("count", "correct", "k", "expected"),
    [
        (8, 3, 4, 0.928571),  # 1 - 5/70
        (16, 2, 8, 0.766667),  # 1 - 3003/12870
        (4, 0, 2, 0.0),
        (4, 3, 2, 1.0),
        (5, 1, 1, 0.2),
    ],
)
def test_pass_at_k_worked_numbers(count, correct, k, expected):
    assert pass_at_k(count, correct, k) == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_right_one(count, data):
    correct, k = data.draw(st.integers(0, count)), data.draw(st.integers(1, count))
    choices = list(itertools.combinations(range(count), k))
    assert pass_at_k(count, correct, k) == pytest.approx(
        sum(min(c) < correct for c in choices) / len(choices)
    )


def test_pass_at_k_with_thousands_of_completions_neither_overflows_nor_rounds_away():
    assert pass_at_k(10_000, 1, 10) == pytest.approx(0.001)


def test_pass_at_k_refuses_fewer_completions_than_k():
    with pytest.raises(ValueError, match="pass@4 needs at least 4"):
        pass_at_k(3, 1, 4)
    with pytest.raises(ValueError, match="5 correct of 3"):
        pass_at_k(3, 5, 1)


@pytest.mark.parametrize(
    # From the tables of Student's t (Fisher and Yates), two-sided 95 %.
    ("degrees", "expected"),
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (7, 2.365),
        (10, 2.228),
        (30, 2.042),
        (120, 1.980),
    ],
)
def test_quantiles_of_student(degrees, expected):
    assert student_quantile(0.975, degrees) == pytest.approx(expected, rel=2e-3)


def test_a_mean_of_few_groups_has_a_wider_interval_than_the_normal_one():
    interval = mean_interval(0.5, 0.1, units=4)
    assert (interval.low, interval.high) == (pytest.approx(0.1818, abs=1e-3), pytest.approx(0.8182, abs=1e-3))
    assert math.isnan(mean_interval(0.5, None, 4).low) and math.isnan(mean_interval(0.5, 0.1, 1).low)


def test_bootstrap_of_yes_and_no_agrees_with_the_binomial():
    # 200 outcomes with p = 0.3: the exact central 95 % of the binomial mean is [0.24, 0.365].
    interval = bootstrap_interval([1.0] * 60 + [0.0] * 140)
    assert interval.estimate == pytest.approx(0.3)
    assert (interval.low, interval.high) == (pytest.approx(0.24, abs=0.011), pytest.approx(0.365, abs=0.011))


def test_bootstrap_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        difficulty = random.beta(0.5, 0.5, 40)
        scores = random.binomial(4, difficulty) / 4
        interval = bootstrap_interval(scores, resamples=400, seed=trial)
        covered += interval.low <= 0.5 <= interval.high
    assert 0.90 <= covered / 300 <= 0.98


def test_bootstrap_leaves_out_missing_prompts_weighs_and_repeats_itself():
    values = [1.0, math.nan, 0.0, 0.0]
    assert bootstrap_interval(values).estimate == pytest.approx(1 / 3)
    assert bootstrap_interval(values, weights=[2, 5, 1, 1]).estimate == pytest.approx(0.5)
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert math.isnan(bootstrap_interval([math.nan]).low)


@pytest.mark.parametrize(
    ("only_a", "only_b", "expected"),
    [
        (1, 9, 0.021484375),  # 2 · (1 + 10) / 2^10
        (5, 5, 1.0),
        (0, 0, 1.0),
        (0, 6, 0.03125),  # 2 / 2^6
        (3, 10, 2 * (1 + 13 + 78 + 286) / 2**13),
    ],
)
def test_mcnemar_worked_numbers(only_a, only_b, expected):
    assert mcnemar(only_a, only_b) == mcnemar(only_b, only_a) == pytest.approx(expected)


def test_yes_and_no_are_compared_by_mcnemar():
    a = [0] * 9 + [1] + [1] * 40
    b = [1] * 9 + [0] + [1] * 40
    result = paired_test(a, b)
    assert (result.method, result.better, result.worse, result.pairs) == ("mcnemar", 9, 1, 50)
    assert result.p_value == pytest.approx(0.021484375) and result.difference == pytest.approx(8 / 50)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9))
def test_the_permutation_test_counts_all_signs(pairs):
    a, b = [x / 4 + 0.1 for x, _ in pairs], [y / 4 + 0.1 for _, y in pairs]
    differences = [y - x for x, y in zip(a, b, strict=True)]
    observed = abs(sum(differences))
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(a))
    ]
    assert paired_test(a, b).p_value == pytest.approx(sum(s >= observed - 1e-9 for s in sums) / len(sums))


def test_many_pairs_agree_with_the_normal_approximation():
    random = np.random.default_rng(1)
    differences = random.normal(0.1, 1.0, 300)
    result = paired_test(np.full(300, 0.3), 0.3 + differences)
    z = differences.sum() / math.sqrt((differences**2).sum())
    assert result.p_value == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), abs=0.01)
    assert result.method == "permutation"


def test_equal_policies_are_called_different_as_seldom_as_promised():
    random = Random(0)
    found = 0
    for trial in range(400):
        difficulty = [random.random() for _ in range(40)]
        a = [sum(random.random() < p for _ in range(4)) / 4 for p in difficulty]
        b = [sum(random.random() < p for _ in range(4)) / 4 for p in difficulty]
        found += paired_test(a, b, resamples=300, seed=trial).p_value < 0.05
    assert found / 400 < 0.08


def test_pairs_with_a_missing_side_are_left_out_and_lengths_must_agree():
    result = paired_test([0.5, math.nan, 1.0], [1.0, 1.0, math.nan])
    assert result.pairs == 1
    with pytest.raises(ValueError, match="same prompts"):
        paired_test([1.0], [1.0, 0.0])
