"""Groups of several sizes that are replaced: each by one of its size."""

from covey.plan import make_plan
from covey.score.dynamic_sampling import DynamicSampling
from covey.score.group_growth import GroupGrowth, GrowingRound
from covey.types import Completion, Group, Prompt, Score, ScoredGroup

TEACHES = (1.0, 0.0)


def group(row, *totals):
    completions = tuple(Completion((1,), (-1.0,), "x", "stop") for _ in totals)
    scores = {"task": tuple(Score(t) for t in totals)}
    zeros = (0.0,) * len(totals)
    return ScoredGroup(
        Group(Prompt("p", (1,), row=row), completions), scores, totals, zeros, weights={"task": 1.0}
    )


def growing(prompts, reserve, limit=2):
    def succeeds(scored):
        return tuple(t == 1.0 for t in scored.totals)

    plan = make_plan(group_size=4, micro_batch=4 * len(prompts), accumulation=1, first=2, max_steps=1)
    growth = GroupGrowth(plan, 0, succeeds, list)
    sampling = DynamicSampling(lambda s: len(set(s.totals)) > 1, reserve, limit, lambda value: [value])
    return GrowingRound(growth, prompts, 1, 0, sampling)


def test_a_fresh_group_takes_a_place_of_its_size():
    prompts, fresh = ([Prompt(c, (1,), row=n + at) for n, c in enumerate("abc")] for at in (0, 10))
    kept = growing(prompts, fresh * 2)
    asked = kept.add([group(0, 1.0, 1.0), group(1, 0.0, 0.0), group(2, *TEACHES)])
    assert kept.attempt is None and (asked.counts, asked.first) == ([0, 3, 3], 2)
    asked = kept.add([group(1, 0.0, 0.0, 0.0), group(2, *TEACHES, 0.0)])
    assert [len(s.totals) for s in kept.attempt] == [2, 5, 5]
    assert (asked.counts, asked.first) == ([2, 5], 0), "sampled at once"
    asked = kept.add([group(10, 1.0, 1.0), group(11, *TEACHES, 0.0, 0.0, 0.0)])
    assert [s.group.prompt.row for s in kept.groups] == [0, 11, 2], (
        "not in the place of the first, which has two"
    )
    assert asked.counts == [2]
    assert kept.add([group(12, *TEACHES)]) is None
    assert [s.group.prompt.row for s in kept.groups] == [12, 11, 2]
    assert all(sum(s.shares) == 4 or abs(sum(s.shares) - 4) < 1e-12 for s in kept.groups)
    assert set(kept.groups[1].shares) == {4 / 5}, "its size hangs on nothing that it said"
