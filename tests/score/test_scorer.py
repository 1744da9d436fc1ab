"""Groups in, scored groups out: every reward over every completion, None and weights, one advantage each."""

import math
from dataclasses import replace

import pytest

from covey.metrics import merge
from covey.rewards.contract import Reward, reward
from covey.rewards.mixture import Mixture
from covey.score.estimators import estimator
from covey.score.score_metrics import completion_metrics, reward_metrics
from covey.score.scorer import Scorer
from covey.score.shaping import Shaping
from tests.ranks import on_ranks


def scorer(weights, *functions, aggregation="sum_then_normalize", **kwargs):
    rewards = [Reward(f, f.__name__) for f in functions]
    named = {r.name: w for r, w in zip(rewards, weights, strict=True)}
    return Scorer(Mixture(*rewards), named, estimator("grpo", aggregation, "group"), **kwargs)


def numbers(name, *values):
    """A reward that gives these values, in order."""

    def reward(completions):
        return list(values)

    reward.__name__ = name
    return reward


def score(scorer, groups, **kwargs):
    scored, metrics = scorer.run_rewards(groups, **kwargs)
    given = reward_metrics(scored, [reward.name for reward in scorer.rewards])
    scored, more = scorer.add_advantages(scored)
    return scored, merge(metrics, given, more)


def values(metrics):
    return {name: metric.value for name, metric in metrics.items()}


def test_weighted_totals_advantages_and_metrics(group):
    s = scorer([0.7, 0.3], numbers("f1", 1, 0, 1, 0), numbers("f2", 0, 0, 1, 1))
    (scored,), metrics = score(s, [group("a", "b", "c", "d")])
    assert scored.totals == pytest.approx((0.7, 0.0, 1.0, 0.3))
    assert scored.advantages == pytest.approx((0.45476, -1.13689, 1.13689, -0.45476), abs=6e-6)
    assert metrics["reward"].value == pytest.approx(0.5)
    assert metrics["rewards/f1/mean"].value == 0.5
    assert metrics["frac_reward_zero_std"].value == 0.0


def test_each_task_is_scored_by_its_own_reward(group):
    def math_reward(completions, task):
        return [float(c in "ac") if t == "math" else None for c, t in zip(completions, task, strict=True)]

    def code_reward(completions, task):
        return [2.0 if t == "code" else None for t in task]

    groups = [group("a", "b", "c", "d", task="math"), group("a", "b", task="code")]
    (maths, code), metrics = score(scorer([1, 1], math_reward, code_reward), groups)
    assert maths.advantages == pytest.approx((0.86588, -0.86588, 0.86588, -0.86588), abs=1e-5)
    assert code.advantages == (0.0, 0.0)
    assert {s.status for s in maths.scores["code_reward"]} == {"not_applicable"}
    assert metrics["rewards/math_reward/count"].value == 4
    assert metrics["rewards/code_reward/mean"].value == 2.0
    assert metrics["frac_reward_zero_std"].value == 0.5


def test_nothing_scored_is_no_number_and_no_advantage(group):
    (scored,), metrics = score(scorer([1], numbers("f", None, None)), [group("a", "b")])
    assert scored.totals == (None, None)
    assert scored.advantages == (0.0, 0.0)
    assert metrics["reward"].value is None
    assert metrics["reward/unscored"].value == 1.0
    assert all(v is None or math.isfinite(v) for v in values(metrics).values())


def test_spread_is_taken_within_groups(group):
    # (-9, -9) and (3, 3): the rewards differ, but no group has any spread
    (one, two), metrics = score(scorer([1], numbers("f", -9, -9, 3, 3)), [group("a", "b"), group("c", "d")])
    assert one.advantages == two.advantages == (0.0, 0.0)
    assert metrics["frac_reward_zero_std"].value == 1.0
    assert metrics["reward_std"].value == 0.0
    assert metrics["rewards/f/std"].value == pytest.approx(6.9282, abs=1e-4)


def test_normalize_then_sum_sees_every_reward(group):
    s = scorer(
        [0.7, 0.3],
        numbers("f1", 0, 0, 0, 1),
        numbers("f2", 1, 1, 1, 0),
        aggregation="normalize_then_sum",
    )
    (scored,), _ = score(s, [group("a", "b", "c", "d")])
    # one group: whitening divides (-0.19996 × 3, 0.59988) by its deviation 0.39992 + 1e-4
    assert scored.advantages == pytest.approx((-0.49988, -0.49988, -0.49988, 1.49963), abs=2e-5)


def test_statistics_beyond_a_group_are_taken_over_all_ranks(group):
    """Two ranks with the same prompt: their groups stay apart, and each gets its own share of the numbers."""
    one, two = group("a", "b"), group("c", "d")

    def on_rank(rank, gather):
        s = scorer([1], numbers("f", *((1, 0), (10, 4))[rank]), gather=gather, rank=rank)
        s.estimate = estimator("grpo", "sum_then_normalize", "batch")
        (scored,), _ = score(s, [(one, two)[rank]])
        return scored.advantages

    both = scorer([1], numbers("f", 1, 0, 10, 4))
    both.estimate = estimator("grpo", "sum_then_normalize", "batch")
    (left, right), _ = score(both, [one, two])
    shares = on_ranks(2, on_rank)
    assert shares[0] == pytest.approx(left.advantages)
    assert shares[1] == pytest.approx(right.advantages)
    assert left.advantages != pytest.approx((0.70701, -0.70701), abs=1e-3), "the batch has another spread"


def test_lengths_are_those_of_the_tokens(group):
    metrics = values(completion_metrics([group("a", "bcd", "efghi", truncated=(2,))]))
    assert metrics["completions/mean_length"] == 3
    assert metrics["completions/max_length"] == 5
    assert metrics["completions/clipped_ratio"] == pytest.approx(1 / 3)
    assert metrics["completions/mean_terminated_length"] == 2
    assert metrics["completions/max_terminated_length"] == 3


def test_shaping_moves_advantages_and_not_the_reward(group):
    s = scorer([1], numbers("f", 1, 1, 0, 1))
    s.shaping = Shaping(truncated_reward=0.0)
    cut = group("a", "b", "c", "d", truncated=(1,))
    (scored,), metrics = score(s, [cut])
    assert scored.totals == (1.0, 1.0, 0.0, 1.0)
    assert scored.advantages == pytest.approx((0.86588, -0.86588, -0.86588, 0.86588), abs=1e-5)
    assert metrics["reward"].value == 0.75
    s.shaping = Shaping(truncated_in_baseline=False)
    (scored,), _ = score(s, [cut])
    # mean and spread of 1, 0, 1
    assert scored.advantages == pytest.approx((0.57725, 0.0, -1.15450, 0.57725), abs=1e-5)


def test_penalties_are_taken_off_before_advantages(group):
    s = scorer([1], numbers("f", 1, 1))
    (scored,), metrics = score(s, [group("a", "b")], penalties=[0.5, 0.0])  # 0.5 and 1: deviation 0.353553
    assert scored.totals == (1.0, 1.0)
    assert scored.advantages == pytest.approx((-0.70691, 0.70691), abs=1e-5)
    assert metrics["reward/kl_penalty"].value == 0.25
    assert metrics["advantages/mean_abs"].value == pytest.approx(0.70691, abs=1e-5)


def test_estimators_see_the_lengths(group):
    s = scorer([1], numbers("f", 1, 0))
    s.estimate = estimator("opo")
    (scored,), _ = score(s, [group("a", "bcd")])
    assert scored.advantages == pytest.approx((0.75, -0.25))


def test_weights_by_task_go_with_their_groups(group):
    rewards = Mixture(
        reward(numbers("f", 1, 0, 1, 0), weight={"a": 2.0, "*": 0.5}),
        reward(numbers("g", 1, 1), tasks="b"),
    )
    s = Scorer(rewards, None, estimator("grpo", "normalize_then_sum", "group"))
    groups = [group("a", "b", task="a"), group("c", "d", task="b")]
    (one, two), metrics = score(s, groups)
    assert one.weights == {"f": 2.0, "g": 1.0} and two.weights == {"f": 0.5, "g": 1.0}
    assert one.totals == (2.0, 0.0) and two.totals == (1.5, 1.0)
    # each normalised in its group: ±0.70701, times 2 and 0.5; whitened over ±1.41402, ±0.35350 (deviation 1.19007)
    assert one.advantages == pytest.approx((1.18808, -1.18808), abs=2e-5)
    assert two.advantages == pytest.approx((0.29702, -0.29702), abs=2e-5)
    assert metrics["rewards/g/advantage_share"].value == 0.0


def test_a_rank_without_groups_takes_part(group):
    def on_rank(rank, gather):
        values = (1, 0) if rank == 0 else ()
        s = scorer([1], numbers("f", *values), gather=gather, rank=rank)
        return score(s, [group("a", "b")] if rank == 0 else [])

    (alone, _), (nothing, metrics) = on_ranks(2, on_rank)
    assert alone[0].advantages == pytest.approx((0.70701, -0.70701), abs=1e-5)
    assert nothing == [] and metrics["reward"].value is None and metrics["rewards/f/count"].value == 0


@pytest.mark.parametrize("failed", [0, 1])
def test_a_failed_episode_is_shown_to_no_reward_and_takes_no_weight_from_its_siblings(group, failed):
    seen = []

    def lengths(completions):
        seen.extend(completions)
        return [float(len(c)) for c in completions]

    made = group("a", "bb", "cccc")
    members = list(made.completions)
    members[failed] = replace(members[failed], finish="failed")
    (scored,), _ = score(scorer([0.5], lengths), [replace(made, completions=tuple(members))])
    left = [0.5 * len(c) for i, c in enumerate(("a", "bb", "cccc")) if i != failed]
    assert [t for t in scored.totals if t is not None] == left and scored.totals[failed] is None
    assert scored.advantages[failed] == 0.0 and sum(scored.advantages) == pytest.approx(0)
    assert seen == [c for i, c in enumerate(("a", "bb", "cccc")) if i != failed] and scored.weights == {
        "lengths": 0.5
    }
