"""Bounds as options of a reward: what is refused, and that no mixture forgets one silently."""

import math

import pytest

from covey.errors import RewardError
from covey.rewards import Mixture, RewardBatch, reward
from covey.rewards.bounds import Bound


def ones(completions, **_):
    return [1.0] * len(completions)


def test_a_bound_is_what_was_said():
    at_most = reward(ones, at_most=300, multiplier_step=0.01, multiplier_damping=0, multiplier_max=2)
    assert at_most.options.bound == Bound(300.0, -1, 0.01, 0.0, 2.0)
    assert reward(ones, at_least=0.9).options.bound == Bound(0.9, 1, 0.1, 2.0, 10.0)
    assert reward(ones).options.bound is None

    @reward(at_least=0.5, tasks="math")
    def decorated(completions, **_):
        return [1.0] * len(completions)

    mix = Mixture(ones, decorated, reward(ones, at_most=0.0, name="few"))
    assert {name: bound.sign for name, bound in mix.bounds.items()} == {"decorated": 1, "few": -1}
    assert decorated(["a"]) == [1.0]  # stays a plain function


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(at_least=0.9, at_most=1.0), "Give it twice, under two names"),
        (dict(at_least=0.9, weight=2.0), "what it weighs is the multiplier"),
        (dict(at_least=0.9, weight=1.0), "what it weighs is the multiplier"),
        (dict(at_most=0.9, weight={"math": 1.0}), "what it weighs is the multiplier"),
        (dict(at_least="0.9"), "at_least='0.9'; it is a number"),
        (dict(at_least=True), "at_least=True; it is a number"),
        (dict(at_most=math.nan), "at_most=nan; it is a number"),
        (dict(at_least=0.9, multiplier_step=0), "multiplier_step=0; it is a number above 0"),
        (dict(at_least=0.9, multiplier_damping=-1), "multiplier_damping=-1; it is a number of at least 0"),
        (dict(at_least=0.9, multiplier_max=math.inf), "multiplier_max=inf; it is a number above 0"),
        (dict(multiplier_step=0.2), "multiplier_step has no effect without at_least or at_most"),
        (dict(multiplier_max=1.0), "multiplier_max has no effect without at_least or at_most"),
    ],
)
def test_what_contradicts_itself_or_does_nothing_is_refused_by_name(options, said):
    with pytest.raises(RewardError, match=rf"Reward 'ones'.*{said}"):
        reward(ones, **options)


def test_a_weight_and_a_bound_are_refused_in_whatever_order_they_come():
    weighed, bounded = reward(ones, weight=0.5), reward(ones, at_least=0.9)
    with pytest.raises(RewardError, match="what it weighs is the multiplier"):
        reward(weighed, at_least=0.9)
    with pytest.raises(RewardError, match="what it weighs is the multiplier"):
        reward(bounded, weight=0.5)
    assert reward(bounded, on_error="missing").options.bound == bounded.options.bound
    (kept,) = Mixture(bounded, on_error="missing")
    assert kept.options.bound == bounded.options.bound


def test_a_mixture_with_a_bound_is_no_plain_function_and_no_part_of_another_one():
    mix = Mixture(ones, reward(ones, at_least=0.9, name="kept"))
    with pytest.raises(RewardError, match=r"'kept' has at_least or at_most, .* no multiplier is learned"):
        mix(completions=["a"])
    for part in (mix, reward(mix, weight=0.5)):
        with pytest.raises(RewardError, match="'kept'"):
            Mixture(ones, part)


def test_where_no_multiplier_is_learned_it_is_a_metric():
    mix = Mixture(ones, reward(ones, at_least=0.9, name="kept"))
    batch = RewardBatch(prompts=["p"], completions=["a"])
    assert mix.weights == {"ones": 1.0, "kept": 0.0} and mix.score(batch).total(0) == 1.0
    assert mix.score(batch, {"kept": -0.5}).total(0) == 0.5
