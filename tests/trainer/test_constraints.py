"""Rewards with a bound in a run: which multiplier weighs which rollout, and that a run stays a function of its settings."""

import json

import pytest

from covey.errors import CheckpointError, ConfigError
from covey.rewards import Mixture, reward
from covey.runs import Run
from covey.runs.what_if import WhatIf, rescore
from covey.types import Completion, Group, Prompt, Score, ScoredGroup
from tests.tiny import tiny_policy
from tests.trainer.elsewhere import Elsewhere
from tests.trainer.harness import MANY_ENDS, Recorder, logged, make, rows, same, train, weights

pytestmark = pytest.mark.any_version

SETTINGS = dict(learning_rate=1e-2, optim="adamw_torch", lr_scheduler_type="cosine", max_steps=6)
VARIANTS = {
    "one step per rollout": dict(),
    "steps and passes": dict(
        per_device_train_batch_size=4, steps_per_generation=2, num_iterations=2, max_steps=8
    ),
    "refills": dict(dynamic_sampling=True, dynamic_sampling_rounds=2),
    "ahead": dict(async_lag=1),
    "refills ahead": dict(async_lag=2, dynamic_sampling=True, dynamic_sampling_rounds=2),
    "groups that grow": dict(group_allocation="grow", advantage_estimator="rloo"),
    "normalised": dict(multi_objective_aggregation="normalize_then_sum"),
}


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 2) for ids in completion_ids]


def lengths(completion_ids, **_):
    return [float(len(ids)) for ids in completion_ids]


def odd(completion_ids, **_):
    """None where it does not apply."""
    return [None if len(ids) == 8 else float(sum(ids) % 2) for ids in completion_ids]


def half_hopeless(completion_ids, hopeless, **_):
    return [0.0 if h else float(sum(ids) % 2) for ids, h in zip(completion_ids, hopeless, strict=True)]


def bounded(value=None):
    """A reward, a length that is to be short, and a share that is to be large and cannot be."""
    few = reward(lengths, at_most=3.0, name="few", multiplier_step=0.05, multiplier_damping=0.5)
    return Mixture(value or by_ids, few, reward(odd, at_least=2.0, name="odd", multiplier_max=0.5))


def numbers(trainer):
    own = ("time/", "step_time", "memory/", "async/")
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{k: v for k, v in entry.items() if not k.startswith(own)} for entry in entries]


@pytest.fixture
def policy(tmp_path):
    return tiny_policy(tmp_path / "m", generation=MANY_ENDS)


def by_hand(values, limit, sign, step, damping, largest):
    """Multipliers of rollouts whose means were these, from the formula."""
    ascent, found = 0.0, [0.0]
    for value in values:
        violation = sign * (limit - value)
        ascent = min(max(ascent + step * violation, 0.0), largest)
        found.append(min(max(ascent + damping * violation, 0.0), largest))
    return found


def test_multipliers_follow_the_means_of_the_rollouts(tmp_path, policy):
    recorder = Recorder(by_ids)
    trainer = train(policy, tmp_path / "run", bounded(recorder), rows(16), **SETTINGS)
    for name, sign in (("few", -1), ("odd", 1)):
        bound = trainer.scorer.rewards.bounds[name]
        means = [sum(kept) / len(kept) for kept in values_of(recorder, name)]
        expected = by_hand(means, bound.limit, sign, bound.step, bound.damping, bound.largest)
        assert logged(trainer, f"constraints/{name}/value") == pytest.approx(means)
        assert logged(trainer, f"constraints/{name}/violation") == pytest.approx(
            [sign * (bound.limit - m) for m in means]
        )
        assert logged(trainer, f"constraints/{name}/multiplier") == pytest.approx(expected[:-1])
        assert logged(trainer, f"rewards/{name}/weight") == pytest.approx([sign * m for m in expected[:-1]])
        assert trainer.rollouts.multipliers.present[name].value == pytest.approx(expected[-1])
    assert logged(trainer, "constraints/odd/at_max") == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert len(set(logged(trainer, "constraints/few/multiplier"))) == 6


def values_of(recorder, name):
    function = {"few": lengths, "odd": odd}[name]
    return [[v for v in function(call["ids"]) if v is not None] for call in recorder.calls]


def test_the_totals_of_a_rollout_are_weighed_with_its_multipliers(tmp_path, policy):
    trainer = train(policy, tmp_path / "run", bounded(), rows(16), **SETTINGS)
    lines = [line for table in Run(tmp_path / "run").group_tables() for line in table.to_pylist()]
    for line in lines:
        few, share = (
            logged(trainer, f"constraints/{name}/multiplier")[line["step"] - 1] for name in ("few", "odd")
        )
        own = line["score/by_ids"] - few * line["score/few"] + share * (line["score/odd"] or 0.0)
        assert line["total"] == pytest.approx(own)
        assert (line["weight/few"] or 0.0, line["weight/odd"] or 0.0) == (-few, share)
    assert len({line["weight/few"] for line in lines}) == 6
    assert "weight/by_ids" not in lines[0]  # the head of the record names it


def test_what_if_starts_from_the_weights_that_were_used(tmp_path, policy, recwarn):
    train(policy, tmp_path / "run", bounded(), rows(16), **SETTINGS)
    same_again = rescore(tmp_path / "run", WhatIf())
    assert same_again.after.totals == pytest.approx(same_again.before.totals, nan_ok=True)
    assert same_again.after.advantages == pytest.approx(same_again.before.advantages)
    without = rescore(tmp_path / "run", WhatIf(weights={"few": 0.0, "odd": 0.0}))
    lines = [line for table in Run(tmp_path / "run").group_tables() for line in table.to_pylist()]
    assert without.after.totals == pytest.approx([line["score/by_ids"] for line in lines])
    assert not [w for w in recwarn if "vary by task or over time" in str(w.message)]


def test_a_bound_with_room_changes_nothing(tmp_path, policy):
    one, two = Recorder(by_ids), Recorder(by_ids)
    a = train(policy, tmp_path / "a", one, rows(16), **SETTINGS)
    room = Mixture(reward(lengths, at_most=8.0, name="few"), two, reward(odd, at_least=-1.0))
    b = train(policy, tmp_path / "b", room, rows(16), **SETTINGS)
    assert same(weights(a), weights(b)) and one.all("ids") == two.all("ids")
    assert logged(a, "reward") == logged(b, "reward") and logged(b, "constraints/few/multiplier") == [0.0] * 6
    c = train(policy, tmp_path / "c", Mixture(reward(lengths, at_most=1.0), by_ids), rows(16), **SETTINGS)
    assert not same(weights(a), weights(c))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, policy, variant, stop):
    settings = {**SETTINGS, **VARIANTS[variant], "save_strategy": "steps", "save_steps": stop}
    a = train(policy, tmp_path / "run", bounded(), rows(16), **settings)
    b = make(policy, tmp_path / "run", bounded(), rows(16), **settings)
    b.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{stop}"))
    assert same(weights(a), weights(b))
    assert numbers(a) == numbers(b)
    assert a.rollouts.multipliers.present == b.rollouts.multipliers.present
    assert a.rollouts.multipliers.present["few"].value > 0


def test_a_run_that_begins_again_begins_with_0(tmp_path, policy):
    trainer = train(policy, tmp_path / "run", bounded(), rows(16), **SETTINGS)
    trainer.train()
    assert logged(trainer, "constraints/few/multiplier")[0] == 0.0


def test_a_multiplier_knows_of_those_rollouts_that_were_trained_on_before_its_own_began(tmp_path, policy):
    """With a lag of 1, rollout 2 begins when rollout 1 is due: it is weighed with what rollout 0 showed, however late rewards are."""
    made = {**SETTINGS, "async_lag": 1}
    a = make(policy, tmp_path / "a", bounded(), rows(16), **made)
    b = make(policy, tmp_path / "b", bounded(), rows(16), **made)
    b.engine = Elsewhere(b.engine, delay=0.05)
    a.train()
    b.train()
    assert same(weights(a), weights(b))
    bound = a.scorer.rewards.bounds["few"]
    means = logged(a, "constraints/few/value")
    expected = by_hand(means, bound.limit, -1, bound.step, bound.damping, bound.largest)
    assert logged(a, "constraints/few/multiplier") == pytest.approx([0.0, *expected[: len(means) - 1]])


def test_evaluation_weighs_without_multipliers_and_moves_none(tmp_path, policy):
    evaluated = dict(
        eval_dataset=rows(3), eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=100
    )
    a = train(policy, tmp_path / "a", bounded(), rows(16), **SETTINGS)
    b = train(policy, tmp_path / "b", bounded(), rows(16), **SETTINGS, **evaluated)
    assert same(weights(a), weights(b)) and a.rollouts.multipliers.present == b.rollouts.multipliers.present
    assert logged(b, "eval_reward") == pytest.approx(logged(b, "eval_rewards/by_ids/mean"))
    assert min(logged(b, "eval_rewards/few/mean")) > 1


def test_groups_that_are_replaced_are_counted_too(tmp_path, policy):
    few = Recorder(lambda ids: [float(len(own)) for own in ids], "few")
    refills = dict(
        dynamic_sampling=True, dynamic_sampling_rounds=3, dynamic_sampling_rewards=["half_hopeless"]
    )
    mix = Mixture(half_hopeless, reward(few, at_most=3.0))
    puzzles = rows(16, hopeless=[i % 2 == 0 for i in range(16)])
    trainer = train(policy, tmp_path / "run", mix, puzzles, **SETTINGS, **refills)
    assert len(few.calls) > 6 and sum(logged(trainer, "rewards/few/count")) == len(few.all("ids"))
    assert logged(trainer, "constraints/few/value") == pytest.approx(logged(trainer, "rewards/few/mean"))


def test_a_group_that_differs_only_in_what_has_a_bound_carries_a_signal_while_its_multiplier_is_above_0(
    tmp_path, policy
):
    """Else a prompt that is always solved could never learn to be short: its groups would be replaced."""
    trainer = make(policy, tmp_path / "run", bounded(), rows(6), dynamic_sampling=True)
    completions = tuple(Completion((1,), (-1.0,), "", "stop") for _ in range(2))
    scores = {"by_ids": (Score(1.0),) * 2, "few": (Score(1.0), Score(2.0)), "odd": (Score(1.0),) * 2}
    for multiplier, carries in ((0.0, False), (0.5, True)):
        used = {"by_ids": 1.0, "few": -multiplier, "odd": 0.0}
        group = ScoredGroup(
            Group(Prompt("", (1,)), completions),
            scores,
            (1.0 - multiplier, 1.0 - 2 * multiplier),
            (0.0,) * 2,
            weights=used,
        )
        assert trainer.rollouts.has_signal(group) is carries


# --- checkpoints ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_holds_the_multipliers_and_what_was_sampled_ahead_showed(tmp_path, policy):
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2, "async_lag": 1}
    train(policy, tmp_path / "run", bounded(), rows(16), **settings)
    folder = tmp_path / "run" / "checkpoint-2" / "covey"
    assert set(json.loads((folder / "constraints.json").read_text())) == {"few", "odd"}
    (ahead,) = json.loads((folder / "ahead0.json").read_text())["rollouts"]
    scores = [s["value"] for groups in ahead["rounds"] for g in groups for s in g["scores"]["few"]]
    assert ahead["observed"]["few"] == [[value, 1.0] for value in scores]


@pytest.mark.parametrize(("before", "after"), [(by_ids, bounded), (bounded, lambda: by_ids)])
def test_a_checkpoint_of_other_bounds_is_refused(tmp_path, policy, before, after):
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2}
    train(policy, tmp_path / "run", before() if before is bounded else before, rows(16), **settings)
    trainer = make(policy, tmp_path / "run", after(), rows(16), **settings)
    with pytest.raises(CheckpointError, match=r"constraints\.json has multipliers of"):
        trainer.train(resume_from_checkpoint=True)


# --- what does not go together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(reward_weights=[1.0, 0.5, 0.5]), "reward_weights="),
        (dict(advantage_estimator="maxrl"), "advantage_estimator='maxrl'"),
        (dict(advantage_estimator="pass_at_k"), "advantage_estimator='pass_at_k'"),
    ],
)
def test_what_takes_a_multiplier_its_meaning_is_refused_by_name(tmp_path, policy, settings, said):
    with pytest.raises(ConfigError, match=rf"Reward 'few' has a bound.*{said}"):
        make(policy, tmp_path / "run", bounded(), rows(16), **settings)
    trainer = make(policy, tmp_path / "later", bounded(), rows(16), **SETTINGS)
    for name, value in settings.items():
        setattr(trainer.args, name, value)
    with pytest.raises(ConfigError, match="Reward 'few' has a bound"):
        trainer.train()
