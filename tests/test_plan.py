"""The arithmetic of batches against a slow oracle that walks through a run."""

import itertools
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import ConfigError, CoveyWarning
from covey.plan import make_plan, warn_if_cycled

small = st.integers(1, 6)


def plan_of(group_size, micro_batch, accumulation, **kw):
    kw.setdefault("num_prompts", 64)
    return make_plan(group_size=group_size, micro_batch=micro_batch, accumulation=accumulation, **kw)


def whole(completions, group_size):
    return completions % group_size == 0


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
@given(st.integers(2, 8), small, small, st.integers(1, 4), st.integers(1, 3))
def test_an_optimizer_step_holds_whole_groups_and_no_smaller_step_would(
    group, micro, accumulation, ranks, passes
):
    plan = plan_of(group, micro, accumulation, ranks=ranks, iterations=passes)
    oracle = next(a for a in itertools.count(accumulation) if whole(micro * a * ranks, group))
    assert plan.accumulation == oracle
    assert plan.prompts_per_step * group == plan.completions_per_step


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
@given(st.integers(2, 6), small, small, st.integers(1, 3), st.integers(1, 3), st.integers(1, 90))
def test_counts_are_those_of_a_run_walked_through(group, micro, accumulation, ranks, passes, prompts):
    plan = plan_of(group, micro, accumulation, ranks=ranks, iterations=passes, num_prompts=prompts)
    rollouts, left = 0, prompts
    while left >= plan.prompts_per_rollout:
        rollouts, left = rollouts + 1, left - plan.prompts_per_rollout
    if rollouts == 0:  # too few prompts for one round: they are repeated, none is left out
        rollouts, left = 1, 0
    steps = 0
    for _ in range(rollouts):
        for _ in range(passes):
            steps += plan.micro_batches_per_pass // plan.accumulation
    assert (plan.rollouts_per_epoch, plan.steps_per_epoch, plan.dropped_prompts) == (rollouts, steps, left)


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
@given(st.integers(2, 6), small, small, st.integers(1, 4))
def test_micro_batches_of_all_ranks_partition_a_rollout(group, micro, accumulation, ranks):
    plan = plan_of(group, micro, accumulation, ranks=ranks)
    cut = [
        i
        for rank in range(ranks)
        for n in range(plan.micro_batches_per_pass)
        for i in plan.micro_batch_rows(rank, n)
    ]
    assert sorted(cut) == list(range(plan.prompts_per_rollout * group))


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
@given(st.integers(2, 6), small, small, st.integers(1, 4), st.integers(1, 3))
def test_an_optimizer_step_holds_the_same_completions_for_any_number_of_ranks(
    group, micro, accumulation, ranks, rounds
):
    """The law behind 'two processes give the same step as one'."""
    plan = plan_of(
        group, micro, accumulation * group, ranks=ranks, steps_per_generation=accumulation * group * rounds
    )
    one = plan_of(
        group, micro, accumulation * group * ranks, steps_per_generation=accumulation * group * rounds * ranks
    )
    for step in range(rounds):
        many = {
            i
            for rank in range(ranks)
            for n in range(plan.accumulation)
            for i in plan.micro_batch_rows(rank, step * plan.accumulation + n)
        }
        single = {
            i for n in range(one.accumulation) for i in one.micro_batch_rows(0, step * one.accumulation + n)
        }
        assert many == single


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
@given(st.integers(2, 6), small, small, st.integers(1, 4))
def test_the_owner_trains_on_the_first_completion_of_its_groups(group, micro, accumulation, ranks):
    plan = plan_of(group, micro, accumulation, ranks=ranks)
    rows = {
        i: rank
        for rank in range(ranks)
        for n in range(plan.micro_batches_per_pass)
        for i in plan.micro_batch_rows(rank, n)
    }
    for number in range(plan.prompts_per_rollout):
        assert plan.owner(number) == rows[number * group]
        if plan.keeps_groups_whole:
            assert len({rows[number * group + i] for i in range(group)}) == 1


def test_the_founding_documents_settings_accumulate_two_micro_batches_and_say_so():
    with pytest.warns(CoveyWarning, match="gradient_accumulation_steps is 2 instead of 1"):
        plan = plan_of(2, 1, 1)
    assert (plan.prompts_per_step, plan.accumulation, plan.completions_per_step) == (1, 2, 2)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        (
            dict(group_size=1, micro_batch=8, accumulation=1),
            ["num_generations is 1", "at least 2", "siblings"],
        ),
        (
            dict(group_size=4, micro_batch=2, accumulation=1, steps_per_generation=3),
            ["2 and 4", "generation_batch_size"],
        ),
        (
            dict(group_size=4, micro_batch=2, accumulation=2, generation_batch_size=7),
            ["7", "multiple of", "6 and 8"],
        ),
        (
            dict(
                group_size=2, micro_batch=2, accumulation=1, steps_per_generation=2, generation_batch_size=8
            ),
            ["means steps_per_generation 4", "steps_per_generation is 2"],
        ),
        (dict(group_size=2, micro_batch=2, accumulation=1, num_prompts=0), ["no rows"]),
        (dict(group_size=2, micro_batch=2, accumulation=1, num_prompts=None), ["stream", "max_steps"]),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_nearest_that_can(given_, words):
    given_.setdefault("num_prompts", 8)
    with pytest.raises(ConfigError) as error:
        make_plan(**given_)
    assert all(word in str(error.value) for word in words), str(error.value)


@given(
    group=st.integers(2, 6), micro=st.integers(1, 6), accumulation=st.integers(1, 6), steps=st.integers(1, 12)
)
def test_whatever_holds_whole_groups_is_planned_so_that_steps_and_rounds_end_together(
    group, micro, accumulation, steps
):
    """At least as much is sampled at once as was asked for, and more is never silent."""
    if steps * micro % group:
        with pytest.raises(ConfigError, match="whole groups"):
            plan_of(group, micro, accumulation, steps_per_generation=steps)
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        plan = plan_of(group, micro, accumulation, steps_per_generation=steps)
    at_once = plan.micro_batches_per_pass
    assert at_once % plan.accumulation == 0 and at_once * micro % group == 0
    assert at_once >= steps and plan.accumulation == accumulation
    is_asked_for = steps % accumulation == 0 or accumulation % steps == 0
    assert [f"{at_once} micro-batches are sampled at once" in str(w.message) for w in said] == [True] * (
        not is_asked_for
    )


def test_proposals_for_steps_per_generation_are_themselves_accepted():
    with pytest.raises(ConfigError) as error:
        plan_of(6, 4, 1, steps_per_generation=4)
    proposed = [int(n) for n in str(error.value).split("that do: ")[1].split(" (")[0].split(" and ")]
    for steps in proposed:
        assert plan_of(6, 4, 1, steps_per_generation=steps).steps_per_generation == steps


def test_too_few_prompts_are_cycled_with_a_warning():
    plan = plan_of(4, 8, 1, num_prompts=1)
    assert plan.is_cycled and plan.total_steps == 1
    with pytest.warns(CoveyWarning, match="repeated within a round"):
        warn_if_cycled(plan)


def test_the_table_names_what_a_user_asks_about():
    text = str(plan_of(4, 8, 2, num_prompts=30, iterations=2, epochs=2))
    for words in (
        "prompts per optimizer step",
        "16 (4 per prompt)",
        "passes over each sample",
        "optimizer steps in total",
    ):
        assert words in text, text
