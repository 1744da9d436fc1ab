"""Turn credit: worked numbers, the advantage of a whole completion as a special case, and no bias."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import RewardError
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture
from covey.score.advantages import group_advantages
from covey.score.credit import TurnCredit, discounted_returns, turn_advantages, turn_rewards
from covey.score.estimators import estimator
from covey.score.scorer import Scorer
from covey.types import Completion, Group, Prompt, Score, Turn
from covey.update.micro_batch import micro_batch
from covey.update.samples import samples_of


def advantages(*rewards, discount=1.0, **options):
    returns = [discounted_returns(r, discount) for r in rewards]
    return [a.tolist() for a in turn_advantages(returns, [0] * len(returns), **options)]


def test_worked_numbers():
    """Members A (0.2, 0.2, 1.0), B (0.2, 0.5), C (0.0): baselines 0.7, 0.566667, 0.5; deviation of G_1 0.7."""
    a, b, c = advantages([0.2, 0.2, 1.0], [0.2, 0.5], [0.0], scale="none")
    assert a == pytest.approx([0.7, 0.633333, 0.5], abs=1e-6)
    assert b == pytest.approx([0.0, -0.066667], abs=1e-6)
    assert c == pytest.approx([-0.7])
    scaled = advantages([0.2, 0.2, 1.0], [0.2, 0.5], [0.0])
    assert scaled[0][0] == pytest.approx(0.7 / 0.7001)
    of_batch = advantages([0.2, 0.2, 1.0], [0.2, 0.5], [0.0], scale="batch", batch_deviation=2.0)
    assert of_batch[0][0] == pytest.approx(0.7 / 2.0001)


def test_a_discount_takes_off_what_comes_later():
    assert discounted_returns([1.0, 2.0, 4.0], 0.5).tolist() == [3.0, 4.0, 4.0]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(-3, 3)), min_size=2, max_size=6),
    st.sampled_from(["group", "none"]),
)
def test_with_a_reward_at_the_end_only_each_turn_has_the_advantage_of_the_completion(members, scale):
    by_turn = advantages(*([0.0] * (turns - 1) + [r] for turns, r in members), scale=scale)
    whole = group_advantages([r for _, r in members], [0] * len(members), scale)
    for turns, expected in zip(by_turn, whole, strict=True):
        assert turns == pytest.approx([expected] * len(turns), abs=1e-9)


def test_an_unscored_member_is_in_no_statistic():
    a, nothing, b = advantages([1.0, 0.0], [np.nan, np.nan], [0.0], scale="none")
    assert (a, nothing, b) == ([0.5, 0.0], [0.0, 0.0], [-0.5])
    # its baseline of turn 2: A gives 0, B its last, 0
    assert advantages([0.0, 1.0], [0.0, 0.0], [np.nan], scale="none")[:2] == [[0.5, 0.5], [-0.5, -0.5]]


def test_the_estimator_is_without_bias():
    """Two decisions, the second only where the first went on: the mean over every group of two is half the gradient.

    Half, because the mean of a group holds a member's own return with weight 1/2, as in GRPO. The sum runs over all
    outcomes with their probabilities, so the equality is exact. A baseline per turn over those who reached it is off here.
    """
    p, q = 0.3, 0.6  # probability of going on, and of success then
    probability = {("stop",): 1 - p, ("go", "good"): p * q, ("go", "bad"): p * (1 - q)}
    rewards = {("stop",): [0.5], ("go", "good"): [-0.2, 2.0], ("go", "bad"): [-0.2, 0.0]}
    slope = {"go": (1 / p, 0), "stop": (-1 / (1 - p), 0), "good": (0, 1 / q), "bad": (0, -1 / (1 - q))}

    estimate = np.zeros(2)
    for group in itertools.product(probability, repeat=2):
        weight = math.prod(probability[member] for member in group)
        for member, turns in zip(group, advantages(*(rewards[m] for m in group), scale="none"), strict=True):
            for action, advantage in zip(member, turns, strict=True):
                estimate += weight * advantage * np.asarray(slope[action]) / 2
    exact = np.asarray([-0.2 + 2 * q - 0.5, p * 2.0])
    assert estimate == pytest.approx(exact / 2)


# --- from rewards to tokens -----------------------------------------------------------------------------------------------


def episode(*turns, finish="stop"):
    """A completion whose turns have so many sampled and injected tokens."""
    spans, written = [], []
    for sampled, injected in turns:
        start = len(written)
        written += [True] * sampled + [False] * injected
        spans.append(Turn(start, start + sampled, len(written)))
    ids = tuple(range(len(written)))
    return Completion(
        ids, (-1.0,) * len(ids), "text", finish, tuple(written), turns=tuple(spans), messages=()
    )


GROUP = Group(
    Prompt([{"role": "user", "content": "p"}], (1, 2)), (episode((2, 1), (1, 2), (1, 0)), episode((1, 0)))
)


def scored(*rewards, discount=1.0):
    scorer = Scorer(Mixture(*rewards), None, estimator(), credit=TurnCredit(discount))
    groups, _ = scorer.run_rewards([GROUP])
    return scorer.add_advantages(groups)[0][0]


def by_turn(completions):
    return [[0.0, 1.0, 0.0], 0.0]


def at_the_end(completions):
    return [1.0, 0.0]


def test_rewards_of_turns_reach_the_tokens_of_their_turns():
    s = scored(by_turn, at_the_end)
    assert s.totals == (2.0, 0.0)
    assert s.scores["by_turn"][0].turns == (0.0, 1.0, 0.0)
    first, second = s.turn_advantages
    unit = 1 / (math.sqrt(2) + 1e-4)
    assert first == pytest.approx([unit, unit, unit / 2]) and second == pytest.approx([-unit])
    assert s.advantages == pytest.approx((unit, -unit))
    samples = samples_of([s])
    batch = micro_batch(samples, [0, 1], [1.0, 1.0])
    expected = [unit, unit, 0, unit, 0, 0, unit / 2, -unit]
    assert batch.advantage_of_token.tolist() == pytest.approx(expected)
    assert batch.select([1]).advantage_of_token.tolist() == pytest.approx([-unit])


def test_a_turn_with_an_advantage_is_computed_though_the_first_has_none():
    s = scored(by_turn, at_the_end)
    sample = replace(samples_of([s])[0], advantage=0.0, turn_advantages=(0.0, 0.5, 0.0))
    assert sample.has_advantage and not replace(sample, turn_advantages=(0.0, 0.0, 0.0)).has_advantage


def test_what_is_taken_off_a_total_counts_for_the_last_turn():
    scores = [(2.0, Score(1.0, turns=(0.25, 0.75))), (1.0, Score(0.5))]
    assert turn_rewards(scores, 2.0, 2).tolist() == [0.5, 1.5]
    assert np.isnan(turn_rewards(scores, np.nan, 2)).all()
    assert turn_rewards([], 1.0, 0).tolist() == [1.0]


def test_one_number_per_turn_and_no_other_number_of_them():
    with pytest.raises(RewardError, match="returned 2 values for completion 0, which has 3 turns"):
        scored(lambda completions: [[1.0, 2.0], 0.0])
    with pytest.raises(RewardError, match="returned list"):  # a completion in one piece has no turns to judge
        Reward(by_turn, "by_turn").score([1.0], 0)
