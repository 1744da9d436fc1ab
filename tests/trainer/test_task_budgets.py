"""Budgets per task in a run: what is drawn, what it weighs, and that a run stays a function of its settings."""

import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from covey.errors import ConfigError, DatasetError
from covey.plan import make_plan
from covey.sample.task_quota import TaskQuota
from covey.trainer.curriculum import Curriculum
from covey.trainer.data import ShardedPrompts
from covey.trainer.task_budgets import check_tasks, make_quota, warn_of_small_tasks
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, Recorder, config, logged, make, rows, same, train, weights

pytestmark = pytest.mark.any_version

SHARES = {"math": 0.5, "code": 0.25, "text": 0.25}
TASKS = ["math"] * 8 + ["code"] * 3 + ["text"] * 9
SETTINGS = dict(
    task_shares=SHARES, learning_rate=1e-2, optim="adamw_torch", lr_scheduler_type="cosine", max_steps=4
)
VARIANTS = {
    "plain": dict(),
    "refills, steps and passes": dict(
        max_steps=8,
        dynamic_sampling=True,
        per_device_train_batch_size=4,
        steps_per_generation=2,
        num_iterations=2,
        task_weights="equal",
    ),
    "ahead, from a curriculum": dict(async_lag=1, curriculum="exact"),
}


def puzzles():
    return rows(20, task=TASKS)


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 2) for ids in completion_ids]


@pytest.fixture
def policy(tmp_path):
    return tiny_policy(tmp_path / "m", generation=MANY_ENDS)


def trained_on(trainer):
    """Train; gives the tasks of each rollout's groups, in order, as they are trained on."""
    seen, add = [], trainer.scorer.add_advantages

    def adding(groups):
        seen.append([s.group.prompt.columns["task"] for s in groups])
        return add(groups)

    trainer.scorer.add_advantages = adding
    trainer.train()
    return seen


# --- shares of the prompts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [dict(), dict(dynamic_sampling=True), dict(curriculum="biased")])
def test_each_rollout_has_its_prompts_by_the_shares(tmp_path, policy, more):
    """Refills too: a group takes the place of one of its task. Rollouts of 2 have what the order of the run says."""
    seen = trained_on(make(policy, tmp_path / "run", by_ids, puzzles(), **{**SETTINGS, **more}))
    flat = [task for rollout in seen for task in rollout]
    assert flat == ["math", "code", "text", "math"] * 2
    assert Counter(flat) == {name: 8 * share for name, share in SHARES.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, policy, variant):
    settings = {**SETTINGS, **VARIANTS[variant], "save_strategy": "steps", "save_steps": 1}
    whole, rest = Recorder(by_ids), Recorder(by_ids)
    a = train(policy, tmp_path / "run", whole, puzzles(), **settings)
    b = make(policy, tmp_path / "run", rest, puzzles(), **settings)
    b.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert same(weights(a), weights(b))
    asked = [[call["prompts"] for call in recorder.calls] for recorder in (whole, rest)]
    assert rest.calls and asked[1] == asked[0][len(asked[0]) - len(asked[1]) :]
    for key in ("tasks/code/sample_share", "tasks/math/advantage_share"):
        assert logged(a, key) == logged(b, key)


def test_a_curriculum_draws_and_weighs_within_each_task(tmp_path):
    """Its weights are those of a sum over the task's rows: with π the chances, Σ π u is the task's number in the rollout."""
    numbers = {name: [n for n, task in enumerate(TASKS) if task == name] for name in SHARES}
    quota = TaskQuota("task", numbers, SHARES, 1)
    args = config(tmp_path, curriculum="exact", curriculum_floor=0.3)
    curriculum = Curriculum(args, range(20), TASKS, quota=quota)
    values = np.linspace(0.1, 1.0, 20)
    for number in range(6):
        places, chance, weight = curriculum._drawn(number, 5, values)
        tasks = [quota.names[task] for task in quota.tasks(number, 5)]
        assert [TASKS[place] for place in places] == tasks
        for name, own in numbers.items():
            assert chance[own].sum() == pytest.approx(tasks.count(name))
            if name in tasks:
                assert (chance * weight)[own] == pytest.approx([tasks.count(name) / len(own)] * len(own))


def sharded(rank, ranks, quota):
    plan = make_plan(group_size=2, micro_batch=8 // ranks, accumulation=1, ranks=ranks, num_prompts=20)
    reader = SimpleNamespace(read=lambda row, number, key: (number, row["task"]))
    return ShardedPrompts(plan, reader, quota.kept, rank, quota)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_processes_share_refills_out_as_they_share_prompts(ranks):
    """Each has for each of its prompts as many refills of its task as there are rounds, and together they have all."""
    numbers = {name: [n for n, task in enumerate(TASKS) if task == name] for name in SHARES}
    for number in range(5):
        drawn = TaskQuota("task", numbers, SHARES, 1).draw(number, 4, 2)
        given = [(row, {"task": TASKS[row]}) for row in drawn]
        own, fresh = [], []
        for rank in range(ranks):
            ((mine, more),) = sharded(rank, ranks, TaskQuota("task", numbers, SHARES, 1)).rounds(given)
            asked, there = (Counter(task for _, task in part) for part in (mine, more))
            assert all(there[task] == 2 * count for task, count in asked.items() if task != "code")
            own, fresh = own + list(mine), fresh + list(more)
        assert [row for row, _ in own] == drawn[:4]
        assert sorted(row for row, _ in fresh) == sorted(drawn[4:])


# --- the say of tasks ---------------------------------------------------------------------------------------------------------

STEP = dict(scale_rewards="none", loss_type="dapo", max_steps=1, per_device_train_batch_size=16)


def scaled(factor):
    """A reward that pays one of two tasks `factor` times as much."""
    return lambda completion_ids, task, **_: [
        float(sum(ids) % 3) * (factor if t == "code" else 1.0)
        for ids, t in zip(completion_ids, task, strict=True)
    ]


def two_tasks():
    return rows(8, task=["code", "math"] * 4)


def step(policy, folder, factor, **given):
    return train(policy, folder, scaled(factor), two_tasks(), **{**STEP, **given})


def test_what_a_task_pays_leaves_no_trace_in_the_update(tmp_path, policy):
    one, much = (step(policy, tmp_path / str(f), f, task_weights="equal") for f in (1.0, 1024.0))
    assert same(weights(one), weights(much))
    assert logged(much, "tasks/code/factor")[0] == logged(one, "tasks/code/factor")[0] / 1024
    for trainer in (one, much):
        shares = [logged(trainer, f"tasks/{task}/advantage_share")[0] for task in ("code", "math")]
        assert shares == pytest.approx([0.5, 0.5])
    plain, more = (step(policy, tmp_path / f"p{f}", f) for f in (1.0, 1024.0))
    assert not same(weights(plain), weights(more))
    assert logged(more, "tasks/code/advantage_share")[0] > 0.99
    assert logged(more, "tasks/code/sample_share") == [0.5] and not logged(more, "tasks/code/factor")


def test_the_cut_into_micro_batches_makes_no_difference(tmp_path, policy):
    whole = step(policy, tmp_path / "whole", 5.0, task_weights="equal")
    cut = dict(per_device_train_batch_size=4, gradient_accumulation_steps=4)
    parts = step(policy, tmp_path / "parts", 5.0, task_weights="equal", **cut)
    assert logged(whole, "tasks/code/factor") == pytest.approx(logged(parts, "tasks/code/factor"), rel=1e-12)
    a, b = weights(whole), weights(parts)
    assert all(np.allclose(a[n].numpy(), b[n].numpy(), rtol=1e-4, atol=1e-6) for n in a)


# --- what is refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (dict(task_shares={"math": -1.0}), r"task_shares\['math'\] is -1"),
        (dict(task_shares={"math": "half"}), r"task_shares\['math'\] is 'half'"),
        (dict(task_shares={"math": True}), r"task_shares\['math'\] is True"),
        (dict(task_shares={"math": float("nan")}), r"task_shares\['math'\] is nan"),
        (dict(task_shares={"math": 0, "code": 0.0}), "leaves every task out"),
        (dict(task_shares={}), "leaves every task out"),
        (dict(task_shares={1: 0.5}), "known by text"),
        (dict(task_shares="half"), "JSON"),
        (dict(task_weights="even"), "task_weights"),
        (dict(task_weights="equal", curriculum="exact"), "task_weights='equal'"),
        (
            dict(task_weights="equal", group_allocation="grow", advantage_estimator="rloo"),
            "task_weights='equal' does not go with",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(tmp_path, settings, word):
    with pytest.raises(ConfigError, match=word):
        config(tmp_path, **settings)


def test_shares_may_come_as_json(tmp_path):
    assert config(tmp_path, task_shares='{"math": 2, "code": 1}').task_shares == {"math": 2, "code": 1}


@pytest.mark.parametrize(
    ("shares", "dataset", "word"),
    [
        ({**SHARES, "poems": 1.0}, puzzles(), "names 'poems'"),
        ({"math": 1.0}, puzzles(), "does not name 'code', 'text'"),
        (SHARES, rows(4), "Row 0: it names no task"),
        (
            SHARES,
            Dataset.from_dict({"prompt": ["a", "b"], "task": ["math", None]}),
            "Row 1: it names no task",
        ),
    ],
)
def test_other_tasks_than_the_dataset_has_are_refused_before_the_first_step(tmp_path, shares, dataset, word):
    with pytest.raises(DatasetError, match=word):
        make_quota(config(tmp_path, task_shares=shares), range(len(dataset)), dataset)


def test_a_task_that_has_fewer_rows_than_a_rollout_takes_is_named(tmp_path):
    quota = make_quota(config(tmp_path, task_shares={**SHARES, "code": 9.0}), range(20), puzzles())
    with pytest.warns(UserWarning, match="takes more of 'code' than there are rows"):
        warn_of_small_tasks(quota, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_small_tasks(quota, 3)
        warn_of_small_tasks(None, 8)


def test_a_stream_is_refused_by_shares_and_taken_by_weights_where_its_rows_name_tasks(tmp_path):
    stream = puzzles().to_iterable_dataset()
    with pytest.raises(DatasetError, match="task_shares draws rows by number"):
        make_quota(config(tmp_path, task_shares=SHARES), None, stream)
    args = config(tmp_path, task_weights="equal")
    check_tasks(args, stream, {"prompt": "a", "task": "math"}, [])
    with pytest.raises(ConfigError, match="task_weights='equal' has no effect"):
        check_tasks(args, stream, {"prompt": "a"}, [])
    with pytest.raises(ConfigError, match="names 'math'"):
        check_tasks(args, puzzles(), {"prompt": "a", "task": "math"}, ["math"])
    assert make_quota(args, None, stream) is None
