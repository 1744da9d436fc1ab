"""Which groups teach something: judged by the task rewards, before anything shapes them."""

from dataclasses import replace

from covey.score.filters import carries_signal, successes
from covey.types import Completion, Group, Prompt, Score, ScoredGroup


def scored(totals=None, **columns):
    size = len(next(iter(columns.values())))
    completions = tuple(Completion((1,), (-1.0,), "x", "stop") for _ in range(size))
    scores = {
        name: tuple(s if isinstance(s, Score) else Score(s) for s in values)
        for name, values in columns.items()
    }
    return ScoredGroup(Group(Prompt("p", (1,)), completions), scores, totals or (0.0,) * size, (0.0,) * size)


CUT = Completion((1,), (-1.0,), "x", "length")
SOLVED, MIXED = scored(task=[1.0, 1.0, 1.0, 1.0]), scored(task=[0.0, 1.0, 0.0, 1.0])


def test_a_group_whose_rewards_agree_has_no_signal():
    assert not carries_signal(SOLVED, {"task": 1.0})
    assert carries_signal(MIXED, {"task": 1.0})
    assert not carries_signal(scored(task=[1.0, 0.99999994]), {"task": 1.0}), "rounding"


def test_shaping_rewards_are_not_looked_at():
    group = scored(task=[1.0, 1.0], length_penalty=[-0.1, -0.7])
    assert not carries_signal(group, {"task": 1.0})
    assert carries_signal(group, {"task": 1.0, "length_penalty": 1.0})


def test_equal_sums_of_different_parts_count_where_each_reward_is_normalised():
    group = scored(a=[1.0, 0.0], b=[0.0, 1.0])
    weights = {"a": 1.0, "b": 1.0}
    assert not carries_signal(group, weights)
    assert carries_signal(group, weights, per_reward=True)


def test_none_gated_and_failed():
    none, gated = Score(None, "not_applicable"), Score(None, "gated")
    assert not carries_signal(scored(task=[1.0, none, none]), {"task": 1.0})
    assert carries_signal(scored(task=[1.0, gated]), {"task": 1.0}), "a gated score counts as 0"
    other_task = scored(task=[1.0, 0.0], code=[none, none])
    assert carries_signal(other_task, {"task": 1.0, "code": 1.0}), "what does not apply drops out"
    failed = scored(totals=(1.0, None), task=[1.0, 0.0])
    assert not carries_signal(failed, {"task": 1.0}), "the second completion is left out as a whole"


def test_a_weight_of_zero_tells_nothing_apart():
    assert not carries_signal(MIXED, {"task": 0.0})


def test_a_completion_succeeds_where_all_that_applies_to_it_gives_enough():
    none, gated = Score(None, "not_applicable"), Score(None, "gated")

    def succeed(group, named=None, least=1.0, truncated_are_out=False, **weights):
        weighed = replace(group, weights=dict.fromkeys(group.scores, 1.0) | weights)
        return successes(named, least, truncated_are_out, weighed)

    two = scored(task=[1.0, 1.0, 0.9, 2.0], form=[1.0, 0.0, 1.0, 1.0])
    assert succeed(two) == (True, False, False, True)
    assert succeed(two, ["task"]) == (True, True, False, True), "what is not named does not decide"
    assert succeed(two, least=0.9) == (True, False, True, True)
    assert succeed(two, form=0.0) == (True, True, False, True), "nor does what does not count"
    assert succeed(scored(task=[1.0, none, gated], code=[none, 1.0, 1.0])) == (True, True, False)
    assert succeed(scored(task=[none, none])) == (False, False), "nothing says that it succeeded"
    assert succeed(scored(totals=(1.0, None), task=[1.0, 1.0])) == (True, False), "left out as a whole"
    cut = replace(two, group=replace(two.group, completions=(*two.group.completions[:3], CUT)))
    assert succeed(cut)[3] and not succeed(cut, truncated_are_out=True)[3]
