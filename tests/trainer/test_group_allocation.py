"""Groups that grow, in a run: the budget, the samples, the gradient of a step, and every way of taking it."""

import itertools
import threading
from collections import Counter

import pytest
from datasets import Dataset

import covey.runs
from covey.errors import ConfigError, CoveyWarning
from covey.runs.what_if import WhatIf, rescore
from covey.score.allocation import grown_advantages, shares
from covey.types import Growth
from tests.tiny import tiny_policy
from tests.tools.chats import adder, hermes
from tests.trainer import scripted
from tests.trainer.elsewhere import Elsewhere
from tests.trainer.harness import (
    MANY_ENDS,
    config,
    expected_step,
    logged,
    make,
    relative_error,
    rows,
    same,
    step_taken,
    train,
    weights,
)

pytestmark = pytest.mark.any_version

GROW = dict(group_allocation="grow", group_allocation_first=2, advantage_estimator="rloo")
SETTINGS = dict(learning_rate=1e-2, optim="adamw_torch", max_steps=4, per_device_train_batch_size=16)


def often_right(completion_ids, **_):
    """Right, in different degrees, but for one completion in three."""
    return [float(sum(ids) % 3) for ids in completion_ids]


def half_right(completions):
    """Groups of even rows are solved: rewards are asked for each group's completions, two or more at a time."""
    return [float("q0" in str(c) or n % 4 != 1) for n, c in enumerate(completions)]


@pytest.fixture
def policy(tmp_path):
    return tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)


def groups_of(trainer):
    """The scored groups of each rollout, as they are trained on."""
    seen, original = [], trainer.rollouts.finished

    def finished(*arguments):
        seen.append(original(*arguments))
        return seen[-1]

    trainer.rollouts.finished = finished
    trainer.train()
    return seen


def ids_by_prompt(groups):
    return {s.group.prompt.row: [c.ids for c in s.group.completions] for s in groups}


# --- what is sampled ----------------------------------------------------------------------------------------------------


def test_a_step_has_its_completions_and_what_is_solved_gets_no_more(tmp_path, policy):
    trainer = make(policy, tmp_path / "run", often_right, rows(16), **{**SETTINGS, **GROW})
    sizes = Counter()
    for groups in groups_of(trainer):
        assert sum(len(s.totals) for s in groups) == 16
        for s in groups:
            is_solved = min(s.totals[:2]) >= 1
            assert is_solved == (len(s.totals) == 2), s.totals
            sizes[len(s.totals)] += 1
    assert sizes[2] and max(sizes) > 4, sizes
    assert max(logged(trainer, "allocation/largest_group")) == max(sizes)


def test_completion_n_of_a_prompt_is_the_same_whatever_its_group_came_to(tmp_path, policy):
    """Four prompts of which one is never solved, and all the rest always: it gets what the others leave."""
    one = Dataset.from_dict({"prompt": rows(4)["prompt"], "hard": [True, False, False, False]})

    def reward(completion_ids, hard, **_):
        return [float(not h) for h in hard]

    once = {**SETTINGS, "max_steps": 1}
    large = {**once, "num_generations": 10, "per_device_train_batch_size": 40}
    [plain] = groups_of(make(policy, tmp_path / "a", reward, one, **large))
    [grown] = groups_of(make(policy, tmp_path / "b", reward, one, **{**once, **GROW}))
    assert sorted(len(s.totals) for s in grown) == [2, 2, 2, 10]
    others = ids_by_prompt(plain)
    for row, ids in ids_by_prompt(grown).items():
        assert ids == others[row][: len(ids)]


# --- the gradient -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["dr_grpo", "grpo"])
@pytest.mark.parametrize("cut", [dict(per_device_train_batch_size=16), dict(per_device_train_batch_size=2, gradient_accumulation_steps=8)], ids=["whole", "cut"])  # fmt: skip
def test_a_step_is_that_of_the_formula(tmp_path, policy, loss, cut):
    settings = {**GROW, **cut, "loss_type": loss, "importance_sampling_correction": False}
    trainer = make(policy, tmp_path / "run", often_right, rows(16), **settings)
    [groups] = groups_of(trainer)
    assert len({len(s.totals) for s in groups}) > 1
    prompts, ids, pulls = [], [], []
    for s in groups:
        assert s.growth == Growth(2, s.growth.assured, tuple(t >= 1 for t in s.totals))
        advantages = grown_advantages(s.totals, [0] * len(s.totals), [s.growth])
        pulls += [a * w for a, w in zip(advantages, shares(s.growth, 4), strict=True)]
        prompts += [s.group.prompt.content] * len(s.totals)
        ids += [list(c.ids) for c in s.group.completions]
    want = expected_step(policy, prompts, ids, pulls, loss)
    assert relative_error(step_taken(trainer, policy), want) < 1e-4


def test_shares_count_in_every_denominator(tmp_path, policy):
    """With `dapo` and a divergence: one step in one micro-batch, or in eight, is the same."""
    settings = {**GROW, "loss_type": "dapo", "beta": 0.1, "max_steps": 2, "learning_rate": 0.1}
    whole = train(policy, tmp_path / "a", often_right, rows(16), per_device_train_batch_size=16, **settings)
    cut = train(policy, tmp_path / "b", often_right, rows(16), per_device_train_batch_size=2, gradient_accumulation_steps=8, **settings)  # fmt: skip
    assert relative_error(weights(cut), weights(whole)) < 1e-6


# --- with everything else -----------------------------------------------------------------------------------------------

VARIANTS = {
    "one step": dict(),
    "steps and passes": dict(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=2,
        max_steps=8,
    ),
    "two rounds": dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, steps_per_generation=1),
    "refills": dict(dynamic_sampling=True, dynamic_sampling_rounds=2, per_device_train_batch_size=24),
    "ahead": dict(async_lag=1),
    "a curriculum": dict(curriculum="exact"),
    "ahead, refilled": dict(async_lag=1, dynamic_sampling=True, dynamic_sampling_rounds=2),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_and_resumed_it_is_the_same_run(tmp_path, policy, variant):
    settings = {**SETTINGS, **GROW, **VARIANTS[variant], "save_strategy": "steps", "save_steps": 1}
    whole = make(policy, tmp_path / "run", often_right, rows(32), **settings)
    seen = groups_of(whole)
    size = 4 * whole.plan.prompts_per_rollout
    assert all(sum(len(s.totals) for s in groups) == size for groups in seen)
    assert len({len(s.totals) for groups in seen for s in groups}) > 1
    for stop in (1, whole.args.max_steps - 1):
        rest = make(policy, tmp_path / "run", often_right, rows(32), **settings)
        rest.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{stop}"))
        assert same(weights(whole), weights(rest)), stop


def test_the_budget_is_that_of_an_optimizer_step(tmp_path, policy):
    settings = {**SETTINGS, **GROW, "steps_per_generation": 2}
    for groups in groups_of(make(policy, tmp_path / "run", often_right, rows(16), **settings)):
        assert [sum(len(s.totals) for s in groups[i : i + 4]) for i in (0, 4)] == [16, 16]


def test_an_engine_beside_the_update_makes_the_same_run(tmp_path, policy):
    settings = {**SETTINGS, **GROW, "async_lag": 1}
    inside = train(policy, tmp_path / "a", often_right, rows(16), **settings)
    beside = make(policy, tmp_path / "b", often_right, rows(16), **settings)
    beside.engine = Elsewhere(beside.engine, 0.02)
    beside.train()
    threads, original = [], inside.engine.generate

    def generate(*arguments):
        threads.append(threading.current_thread())
        yield from original(*arguments)

    again = make(policy, tmp_path / "c", often_right, rows(16), **settings)
    original, again.engine.generate = again.engine.generate, generate
    again.train()
    assert set(threads) == {threading.main_thread()}, "whose weights are the policy's samples between updates"
    assert same(weights(inside), weights(beside))


def test_replaced_groups_are_of_the_size_of_those_they_replace(tmp_path, policy):
    """Easy prompts are solved and teach nothing: others take their place, and the step keeps its completions."""
    data = Dataset.from_dict({"prompt": rows(24)["prompt"], "easy": [i % 3 == 0 for i in range(24)]})

    def reward(completion_ids, easy, **_):
        return [1.0 if e else r for e, r in zip(easy, often_right(completion_ids), strict=True)]

    settings = {**SETTINGS, **GROW, "dynamic_sampling": True, "dynamic_sampling_rounds": 4}
    trainer = make(policy, tmp_path / "run", reward, data, **settings)
    for groups in groups_of(trainer):
        assert sum(len(s.totals) for s in groups) == 16
    assert max(logged(trainer, "dynamic_sampling/replaced_share")) > 0


def test_a_policy_with_tools_grows_its_groups_too(tmp_path):
    """The first prompt is always answered right; every other completion of the second one is."""

    def says(prompt, index, turn):
        return scripted.sums(prompt, prompt.row % 2 and prompt.first + index, turn)

    settings = dict(GROW, max_steps=2, per_device_train_batch_size=16)
    trainer = scripted.made(tmp_path, data=scripted.chats(8), says=says, tools=[adder()], **settings)
    for groups in groups_of(trainer):
        assert {(s.group.prompt.row % 2, len(s.totals)) for s in groups} <= {(0, 2), (1, 4), (1, 6), (1, 10)}
        for s in groups:
            assert [len(c.turns) for c in s.group.completions] == [1 if n % 2 and s.group.prompt.row % 2 else 2 for n in range(len(s.totals))]  # fmt: skip


def test_episodes_that_begin_differently_are_one_group(tmp_path):
    """An environment says something else at each reset: what the prompts have in common is the group's."""
    numbers = itertools.count()

    def reset(self, row):
        return f"You start at {next(numbers)}."

    settings = dict(GROW, max_steps=2, per_device_train_batch_size=16)
    given = dict(environment_factory=scripted.counter([], reset), data=scripted.chats(8))
    trainer = scripted.made(tmp_path, rewards=half_right, **settings, **given)
    for groups in groups_of(trainer):
        assert {len(s.totals) for s in groups} != {4}
        for s in groups:
            starts = [s.group.prompt.ids + c.ids[: c.opening] for c in s.group.completions]
            said = [hermes().decode(ids) for ids in starts]
            assert len(set(said)) == len(said) and all("You start at" in text for text in said)
            assert all(c.turns[0].start == c.opening for c in s.group.completions)
            own = [p[-1]["content"] for p in s.group.prompts()]
            assert all(
                text.split("You start at")[1].strip() in start for text, start in zip(own, said, strict=True)
            )
            assert len(set(own)) == len(own)
            for c in s.group.completions:
                assert c.written[c.opening] and not any(c.written[: c.opening])


def test_metrics_of_rewards_are_those_of_the_policy(tmp_path, policy):
    trainer = make(policy, tmp_path / "run", often_right, rows(16), **{**SETTINGS, **GROW})
    for groups, reward in zip(groups_of(trainer), logged(trainer, "reward"), strict=True):
        each = [(w, t) for s in groups for w, t in zip(s.shares, s.totals, strict=True)]
        assert reward == pytest.approx(sum(w * t for w, t in each) / 16)
        assert sum(w for w, _ in each) == pytest.approx(16)
    run = covey.runs.Run(tmp_path / "run")
    assert run.settings["group_allocation"] == "grow"
    with pytest.warns(CoveyWarning, match="groups grew while they were sampled"):
        rescore(run, WhatIf(advantage_estimator="rloo"))


# --- refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (dict(scale_rewards="group", advantage_estimator="grpo"), "scale_rewards='group' does not go"),
        (dict(scale_rewards="batch", advantage_estimator="grpo"), "scale_rewards='batch' does not go"),
        (dict(advantage_estimator="maxrl"), "advantage_estimator='maxrl' does not go"),
        (
            dict(advantage_estimator="grpo", multi_objective_aggregation="normalize_then_sum"),
            "multi_objective_aggregation='normalize_then_sum' does not go",
        ),
        (dict(loss_type="bnpo"), "loss_type='bnpo' does not go"),
        (dict(loss_type="clip_cov"), "loss_type='clip_cov' does not go"),
        (dict(loss_type="kl_cov"), "loss_type='kl_cov' does not go"),
        (dict(top_entropy_quantile=0.5), "top_entropy_quantile=0.5 does not go"),
        (dict(importance_sampling_mode="token_m2"), "importance_sampling_mode='token_m2' does not go"),
        (dict(group_allocation_first=4), "group_allocation_first is 4, and num_generations 4"),
        (dict(group_allocation_first=1), "group_allocation_first is 1"),
        (dict(group_allocation="equal"), "group_allocation_first=2 has no effect"),
    ],
)
def test_what_would_not_keep_the_mean_is_refused_by_name(tmp_path, settings, named):
    with pytest.raises(ConfigError, match=named):
        config(tmp_path, **{**GROW, **settings})


def test_a_step_of_one_prompt_has_nobody_to_share_with(tmp_path, policy):
    with pytest.raises(ConfigError, match="group_allocation='grow' has no effect: an optimizer step has one"):
        make(policy, tmp_path / "run", often_right, rows(), **{**GROW, "per_device_train_batch_size": 4})


def test_a_setting_that_does_not_go_with_it_is_refused_late_too(tmp_path, policy):
    trainer = make(policy, tmp_path / "run", often_right, rows(16), **{**SETTINGS, **GROW})
    trainer.args.advantage_estimator = "maxrl"
    with pytest.raises(ConfigError, match="advantage_estimator='maxrl' does not go"):
        trainer.heed_settings()
    trainer.args.group_allocation = "equal"
    with pytest.raises(ConfigError, match="assigned after GRPOTrainer was made"):
        trainer.heed_settings()
