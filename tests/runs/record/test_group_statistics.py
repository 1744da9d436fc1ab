"""What a batch says in numbers, against worked numbers and slow references."""

import math
from random import Random

import numpy as np
import pytest

from covey.runs.record.group_statistics import clustered_mean, group_statistics
from covey.types import Completion, Group, Prompt, Score
from tests.runs.synthetic import WEIGHTS, Story, batch, with_advantages


def test_with_groups_of_one_the_error_is_that_of_a_plain_mean():
    mean, error = clustered_mean([[1.0], [0.0], [1.0], [1.0]])
    assert mean == 0.75
    assert error == pytest.approx(np.std([1, 0, 1, 1], ddof=1) / 2)


def test_with_equal_groups_the_error_is_that_of_the_group_means():
    groups = [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0]]
    mean, error = clustered_mean(groups)
    assert mean == pytest.approx(5 / 12)
    assert error == pytest.approx(np.std([0.75, 0, 0.5], ddof=1) / math.sqrt(3))


def test_worked_number_for_unequal_groups():
    # By hand: n = 6, mean = 0.5; deviations of the sums 2 - 2·0.5 = 1, 0 - 1·0.5 = -0.5, 1 - 3·0.5 = -0.5.
    # se = sqrt(3/2 · (1 + 0.25 + 0.25)) / 6 = sqrt(2.25) / 6 = 0.25.
    mean, error = clustered_mean([[1, 1], [0], [0, 0, 1]])
    assert (mean, error) == (pytest.approx(0.5), pytest.approx(0.25))


def test_copies_of_a_completion_do_not_narrow_the_interval():
    values = [[1.0], [0.0], [1.0], [0.0], [0.0]]
    copied = [v * 8 for v in values]
    assert clustered_mean(copied) == pytest.approx(clustered_mean(values))


def test_nothing_and_one_group_have_no_error():
    assert clustered_mean([]) == (None, None)
    assert clustered_mean([[], []]) == (None, None)
    assert clustered_mean([[1.0, 0.0], []]) == (0.5, None)


def test_the_error_covers_the_spread_of_repeated_batches():
    random = Random(0)
    means, errors = [], []
    for _ in range(400):
        groups = []
        for _ in range(12):
            p = random.random()
            groups.append([float(random.random() < p) for _ in range(6)])
        mean, error = clustered_mean(groups)
        means.append(mean)
        errors.append(error)
    assert np.std(means) == pytest.approx(np.mean(errors), rel=0.1)


def test_none_is_left_out_and_statuses_are_counted():
    scores = {
        "a": [Score(1.0), Score(None, "not_applicable"), Score(None, "gated"), Score(None, "failed", "boom")],
        "b": [Score(0.5), Score(0.5), Score(0.5), Score(0.5)],
    }
    group = Group(Prompt("p", (1, 2)), tuple(Completion((i,), (-1.0,), "x", "stop") for i in (1, 1, 2, 3)))
    numbers = group_statistics([with_advantages(group, scores, {"a": 1.0, "b": 1.0})], ["t"])
    assert numbers["rewards/a/mean"] == 1.0 and numbers["rewards/a/count"] == 1
    for status in ("not_applicable", "gated", "failed"):
        assert numbers[f"rewards/a/{status}_share"] == 0.25
    assert "rewards/a/se" not in numbers  # one group
    assert numbers["rewards/b/constant_share"] == 1.0
    assert numbers["reward/failed_share"] == 0.25 and numbers["reward/unscored_share"] == 0
    assert numbers["duplicate_share"] == 0.25
    assert numbers["tasks/t/count"] == 3
    nobody = {"a": [Score(None, "not_applicable")] * 4}
    unscored = group_statistics([with_advantages(group, nobody, {"a": 1.0})], [None])
    assert unscored["reward/unscored_share"] == 1 and unscored["reward/failed_share"] == 0


def test_no_number_is_missing_a_value_and_none_is_not_finite():
    story = Story(failure_rate=0.3)
    for groups in ([], batch(story, 1), batch(story, 40)):
        numbers = group_statistics(groups, [g.group.prompt.columns["task"] for g in groups])
        assert all(math.isfinite(v) for v in numbers.values())


def test_correlation_is_within_groups_not_between_them():
    # Between the groups longer is better; inside each, longer is worse.
    groups = []
    for base in (10, 100):
        completions = tuple(
            Completion(tuple(range(base + i)), (-1.0,) * (base + i), "x", "stop") for i in range(4)
        )
        scores = {"a": [Score(base / 10 - 0.1 * i) for i in range(4)]}
        groups.append(with_advantages(Group(Prompt("p", (1,)), completions), scores, {"a": 1.0}))
    assert group_statistics(groups, [None, None])["reward_length_correlation"] == pytest.approx(-1.0)


def test_shares_of_the_advantage_worked_number():
    # Two rewards with equal weights: a spreads by ±1, b by ±0.25 around their means: shares 0.8 and 0.2.
    scores = {"a": [Score(1.0), Score(-1.0)], "b": [Score(0.75), Score(0.25)], "c": [Score(3.0), Score(3.0)]}
    group = Group(Prompt("p", (1,)), tuple(Completion((i,), (-1.0,), "x", "stop") for i in range(2)))
    weights = {"a": 1.0, "b": 1.0, "c": 5.0}
    numbers = group_statistics([with_advantages(group, scores, weights)], [None], weights)
    shares = {name: numbers[f"rewards/{name}/advantage_share"] for name in weights}
    assert shares == pytest.approx({"a": 0.8, "b": 0.2, "c": 0.0})


def test_shares_add_up_and_leave_out_groups_without_spread_and_failed_completions():
    story = Story(failure_rate=0.2)
    groups = batch(story, 20)
    numbers = group_statistics(groups, ["t"] * len(groups), WEIGHTS)
    assert sum(numbers[f"rewards/{name}/advantage_share"] for name in WEIGHTS) == pytest.approx(1)
    flat = Group(Prompt("p", (1,)), tuple(Completion((i,), (-1.0,), "x", "stop") for i in range(2)))
    constant = with_advantages(flat, {"accuracy": [Score(0.1), Score(0.1)]}, {"accuracy": 1.0})
    assert "rewards/accuracy/advantage_share" not in group_statistics([constant], [None], WEIGHTS)
    shares = group_statistics([*groups, constant], ["t"] * 7, WEIGHTS)["rewards/accuracy/advantage_share"]
    assert shares == pytest.approx(numbers["rewards/accuracy/advantage_share"])
