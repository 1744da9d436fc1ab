"""The say of tasks in the gradient: worked numbers, and what it does not depend on."""

import itertools
import math
from dataclasses import replace

import pytest

from covey.types import Completion, Prompt
from covey.update.micro_batch import build_micro_batches, token_weights
from covey.update.reduction import Reduction
from covey.update.samples import Sample
from covey.update.task_weights import Tasks, TaskSay, equal_factors, joined_says, say_metrics

TASKS = Tasks("task", ("code", "math"), are_equal=True)
LENGTHS, ADVANTAGES, OF = (2, 4, 3, 1), (1.0, -1.0, 0.5, 0.0), ("math", "math", "code", "code")


def sample(length, advantage, task, group=0, **more):
    columns = {} if task is None else {"task": task}
    completion = Completion((5,) * length, (-1.0,) * length, "", "stop")
    return Sample(Prompt("", (1,), columns, seed_key=(group,)), completion, advantage, group, **more)


def four():
    return [sample(*each, group=n // 2) for n, each in enumerate(zip(LENGTHS, ADVANTAGES, OF, strict=True))]


def balanced(samples, cuts=((0, 1, 2, 3),), reduction="dapo", gather=lambda own: [own]):
    weights = token_weights(samples, cuts, len(cuts), Reduction(reduction, 8), gather)
    says = joined_says([TASKS.says(samples, cuts, weights)])
    return TASKS.weighed(samples, equal_factors(says)), weights, says


def test_the_factors_of_two_tasks_worked_by_hand():
    """dapo over ten tokens: w = 1/10. S of math = (2 + 4) / 10 = 0.6, of code = 3 × 0.5 / 10 = 0.15. Σ w n = 1, K = 2."""
    scaled, _, says = balanced(four())
    assert says == {"math": TaskSay(2, pytest.approx(0.6), pytest.approx(0.6)), "code": TaskSay(2, pytest.approx(0.4), pytest.approx(0.15))}  # fmt: skip
    assert equal_factors(says) == pytest.approx({"math": 0.5 / 0.6, "code": 0.5 / 0.15})
    assert [s.advantage for s in scaled] == pytest.approx([5 / 6, -5 / 6, 5 / 3, 0.0])


@pytest.mark.parametrize("reduction", ["grpo", "dr_grpo", "dapo", "prompt_mean", "luspo"])
def test_all_tasks_have_as_much_to_say_and_advantages_a_mean_size_of_one(reduction):
    samples = [*four(), sample(7, 0.1, "text", 2), sample(1, -0.1, "text", 2)]
    scaled, weights, _ = balanced(samples, (range(6),), reduction)
    after = TASKS.says(scaled, (range(6),), weights)
    sizes = [say.size for say in after.values()]
    assert sizes == pytest.approx([sizes[0]] * 3)
    assert sum(sizes) == pytest.approx(sum(say.weight for say in after.values()))


def test_the_scale_of_a_task_leaves_no_trace():
    for factor, is_same in ((1024.0, True), (1000.0, False)):
        larger = [replace(s, advantage=s.advantage * factor) if s.prompt.columns["task"] == "code" else s for s in four()]  # fmt: skip
        one, other = ([s.advantage for s in balanced(given)[0]] for given in (four(), larger))
        assert one == other if is_same else one == pytest.approx(other, rel=1e-14)


def test_more_and_longer_completions_give_a_task_no_more_to_say():
    more = [*four(), *(sample(9, a, "math", 3) for a in (1.0, -1.0, 2.0))]
    scaled, weights, _ = balanced(more, (range(7),))
    after = TASKS.says(scaled, (range(7),), weights)
    assert after["math"].size == pytest.approx(after["code"].size) == pytest.approx(0.5)


@pytest.mark.parametrize("cut", [((0, 1), (2, 3)), ((3,), (1, 2), (0,)), ((0,), (1,), (2,), (3,))])
def test_the_cut_makes_no_difference(cut):
    whole, parts = balanced(four())[0], balanced(four(), cut)[0]
    assert [s.advantage for s in parts] == [s.advantage for s in whole]


def test_two_processes_know_the_say_of_both():
    """Each with one half: math is all in the first, code in the second."""
    samples, halves = four(), (((0, 1),), ((2, 3),))
    weights = [[[0.1, 0.1]], [[0.1, 0.1]]]  # of dapo over both
    of_ranks = [TASKS.says(samples, cut, w) for cut, w in zip(halves, weights, strict=True)]
    both = equal_factors(joined_says(of_ranks))
    assert both == equal_factors(joined_says(of_ranks[::-1]))
    assert both == pytest.approx(equal_factors(balanced(samples)[2]))


def test_a_task_without_an_advantage_says_nothing_and_leaves_its_part_to_no_other():
    quiet = [replace(s, advantage=0.0) if s.prompt.columns["task"] == "code" else s for s in four()]
    scaled, weights, says = balanced(quiet)
    assert equal_factors(says)["code"] == 1.0
    after = TASKS.says(scaled, ((0, 1, 2, 3),), weights)
    assert (after["code"].size, after["math"].size) == (0.0, pytest.approx(0.5))
    nothing = equal_factors(balanced([replace(s, advantage=0.0) for s in four()])[2])
    assert nothing == {"math": 1.0, "code": 1.0}


def test_rows_that_name_no_task_are_one_more():
    scaled, weights, says = balanced([*four(), sample(2, 4.0, None, 4)], (range(5),))
    assert set(says) == {"math", "code", None}
    assert TASKS.says(scaled, (range(5),), weights)[None].size == pytest.approx(1 / 3)
    assert set(say_metrics(says, (), None)) == {f"tasks/{t}/{n}_share" for t in ("math", "code") for n in ("sample", "advantage")}  # fmt: skip


def test_masked_completions_and_turns_count_as_the_loss_does():
    masked = [*four(), sample(6, 9.0, "code", 1, in_loss=False)]
    assert equal_factors(balanced(masked, (range(5),))[2])["code"] == pytest.approx(
        equal_factors(balanced(four())[2])["code"]
    )
    by_turn = [replace(s, turn_advantages=(s.advantage,)) for s in four()]
    scaled = balanced(by_turn)[0]
    assert [s.turn_advantages for s in scaled] == [(s.advantage,) for s in scaled]


def test_shares_are_of_the_completions_and_of_what_is_trained_on():
    _, _, says = balanced(four())
    plain, equal = (say_metrics(says, ("text",), f) for f in (None, equal_factors(says)))
    values = {name: metric.value for name, metric in plain.items()}
    assert values["tasks/math/advantage_share"] == pytest.approx(0.8)
    assert values["tasks/math/sample_share"] == 0.5
    assert values["tasks/text/sample_share"] == values["tasks/text/advantage_share"] == 0.0
    assert equal["tasks/math/advantage_share"].value == pytest.approx(0.5)
    assert equal["tasks/code/factor"].value == pytest.approx(0.5 / 0.15)


def test_micro_batches_hold_the_advantages_that_are_trained_on():
    samples, cut = four(), [(0, 1), (2, 3)]
    adjusted = build_micro_batches(
        samples,
        cut,
        2,
        Reduction("dapo", 8),
        lambda own: [own],
        True,
        lambda weights: TASKS.weighed(samples, equal_factors(TASKS.says(samples, cut, weights))),
    )
    flat = list(itertools.chain.from_iterable(batch.advantages.tolist() for batch in adjusted))
    assert flat == pytest.approx([5 / 6, -5 / 6, 5 / 3, 0.0])
    assert all(math.isclose(w, 0.1, rel_tol=1e-6) for batch in adjusted for w in batch.weights.tolist())
