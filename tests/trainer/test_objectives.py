"""What the settings of the objective do to a run: rows left out, divergence in the reward, bonus, choices, own losses."""

import json
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import CheckpointError, ConfigError
from covey.metrics import Mean
from tests.tiny import tiny_policy
from tests.trainer.harness import (
    MANY_ENDS,
    Recorder,
    advantages,
    by_length,
    expected_step,
    logged,
    make,
    prompt_ids,
    relative_error,
    rows,
    same,
    step_taken,
    train,
    weights,
)

pytestmark = pytest.mark.any_version

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
ONE_GROUP = [1.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5]


def assert_step(trainer, folder, recorder, given=None, **oracle):
    given = advantages(recorder.all("rewards"), 4) if given is None else given
    expected = expected_step(folder, recorder.all("prompts"), recorder.all("ids"), given, **oracle)
    assert relative_error(step_taken(trainer, folder), expected) < 1e-4


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
@pytest.mark.parametrize("micro", [8, 2])
def test_rows_without_advantage_never_reach_the_model(tmp_path, loss_type, micro):
    """The second group has no spread. Its tokens are in the denominator and not in the forward pass."""
    folder = tiny_policy(tmp_path / "m", scale=3.0, generation=MANY_ENDS)
    recorder = Recorder(ONE_GROUP)
    trainer = train(
        folder,
        tmp_path,
        recorder,
        rows(),
        loss_type=loss_type,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=8 // micro,
    )
    assert_step(trainer, folder, recorder, loss_type=loss_type)
    # Micro-batches of two that would be empty keep a row each.
    assert logged(trainer, "update/dropped_share") == [0.5 if micro == 8 else 0.25]


def test_rows_without_advantage_stay_where_they_have_a_divergence(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    trainer = train(folder, tmp_path, Recorder(ONE_GROUP), rows(), beta=0.1)
    assert logged(trainer, "update/dropped_share") == [0.0]


def test_the_divergence_in_the_reward(tmp_path):
    """Against a reference that is not the policy: advantages are those of the reward less beta times the divergence."""
    folder, other = (
        tiny_policy(tmp_path / "m", generation=MANY_ENDS),
        tiny_policy(tmp_path / "other", seed=5, scale=3.0),
    )
    recorder, beta = Recorder(REWARDS), 0.3
    trainer = make(folder, tmp_path, recorder, rows(), beta=beta, kl_in_reward=True)
    with torch.no_grad():
        for name, value in AutoModelForCausalLM.from_pretrained(other).named_parameters():
            trainer.updater.reference.values[name].copy_(value)
    trainer.train()
    divergences = [
        sum(_logprobs(folder, p, c)) - sum(_logprobs(other, p, c))
        for p, c in zip(recorder.all("prompts"), recorder.all("ids"), strict=True)
    ]
    shaped = [r - beta * d for r, d in zip(recorder.all("rewards"), divergences, strict=True)]
    assert max(map(abs, divergences)) > 0.5, "the law needs a reference that differs"
    assert_step(trainer, folder, recorder, advantages(shaped, 4))
    assert logged(trainer, "reward") == [pytest.approx(sum(recorder.all("rewards")) / 8)]
    assert logged(trainer, "reward/kl_penalty") == [pytest.approx(beta * sum(divergences) / 8, rel=1e-4)]
    assert logged(trainer, "kl")[0] > 0


def _logprobs(folder, prompt, ids):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    start = prompt_ids(AutoTokenizer.from_pretrained(folder), prompt)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([start + ids])).logits[0, len(start) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def test_a_loss_of_your_own_is_trained_on(tmp_path):
    def reinforce(terms):
        return -terms.advantages * terms.logprobs

    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    recorder = Recorder(by_length)
    trainer = train(folder, tmp_path, recorder, rows(), loss=reinforce, loss_type="grpo")
    assert_step(trainer, folder, recorder, loss_type="grpo")


def test_a_loss_of_your_own_and_a_named_one_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="was given one as `loss`"):
        make("unused", tmp_path, Recorder(REWARDS), rows(), loss=lambda t: -t.logprobs, loss_type="sapo")
    with pytest.raises(ConfigError, match=r"loss is 'reinforce'; it must be a function.*loss_type="):
        make("unused", tmp_path, Recorder(REWARDS), rows(), loss="reinforce")


OBJECTIVES = [
    {"loss_type": "prompt_mean"},
    {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    {"loss_type": "luspo"},
    {"loss_type": "gmpo"},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "sapo"},
    {"loss_type": "vespo"},
    {"loss_type": "dppo"},
    {"loss_type": "kl_cov", "covariance_share": 0.2},
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o["loss_type"])
def test_before_the_policy_moves_every_objective_is_the_policy_gradient(tmp_path, objective):
    """All completions as long as one another, so that the reductions agree as well (LUSPO's up to the length)."""
    folder = tiny_policy(tmp_path / "m")
    recorder = Recorder(REWARDS)
    trainer = train(folder, tmp_path, recorder, rows(), generation_kwargs={"min_new_tokens": 8}, **objective)
    assert {len(ids) for ids in recorder.all("ids")} == {8}
    given = advantages(recorder.all("rewards"), 4)
    if objective["loss_type"] == "luspo":
        given = [8 * a for a in given]
    assert_step(trainer, folder, recorder, given)


@pytest.mark.parametrize(
    "choice",
    [
        {"top_entropy_quantile": 0.5},
        {"loss_type": "clip_cov", "covariance_share": 0.2, "covariance_low": 1e-6},
    ],
)
def test_choices_over_a_step_are_made_before_it(tmp_path, choice):
    folder = tiny_policy(tmp_path / "m", scale=3.0, generation=MANY_ENDS)
    runs = []
    for micro in (8, 2):
        settings = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": 8 // micro}
        trainer = train(folder, tmp_path, Recorder(by_length), rows(), **settings, **choice)
        runs.append(step_taken(trainer, folder))
    assert relative_error(runs[1], runs[0]) < 1e-5
    plain = step_taken(train(folder, tmp_path, Recorder(by_length), rows()), folder)
    assert relative_error(runs[0], plain) > 1e-2


def test_the_entropy_bonus_flattens(tmp_path):
    folder = tiny_policy(tmp_path / "m", scale=8.0)
    settings = {"learning_rate": 0.3, "max_steps": 6, "entropy_coef": 1.0}
    with_bonus = train(folder, tmp_path, Recorder([0.0] * 8), rows(64), **settings)
    entropies = logged(with_bonus, "entropy")
    assert entropies[-1] > entropies[0] + 0.05
    assert logged(with_bonus, "entropy_coef") == [1.0] * 6
    assert logged(with_bonus, "update/dropped_share") == [0.0] * 6


ADAPTIVE = {"use_adaptive_entropy": True, "entropy_target": 99.0, "entropy_coef_delta": 0.25, "max_steps": 4}


def test_an_adaptive_bonus_moves_step_by_step_and_resumes(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    settings = {**ADAPTIVE, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    whole = train(folder, tmp_path / "run", Recorder(by_length), rows(64), **settings)
    assert logged(whole, "entropy_coef") == [0.0, 0.25, 0.5, 0.75]
    resumed = make(folder, tmp_path / "run", Recorder(by_length), rows(64), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert logged(resumed, "entropy_coef") == logged(whole, "entropy_coef")
    assert same(weights(whole), weights(resumed))


def test_choices_survive_a_stop_between_two_passes(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    settings = {"top_entropy_quantile": 0.5, "num_iterations": 2, "max_steps": 4, "learning_rate": 0.1}
    settings |= {"save_strategy": "steps", "save_steps": 1}
    whole = train(folder, tmp_path / "run", Recorder(by_length), rows(64), **settings)
    resumed = make(folder, tmp_path / "run", Recorder(by_length), rows(64), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert same(weights(whole), weights(resumed))


def test_a_checkpoint_without_the_bonus_is_named(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    train(folder, tmp_path / "run", Recorder(REWARDS), rows(), save_strategy="steps", save_steps=1)
    trainer = make(folder, tmp_path / "run", Recorder(REWARDS), rows(), **{**ADAPTIVE, "max_steps": 2})
    with pytest.raises(CheckpointError, match="coefficient of the entropy bonus"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))


def test_a_run_that_begins_again_begins_with_the_settings(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    trainer = make(folder, tmp_path / "run", Recorder(by_length), rows(64), **ADAPTIVE)
    for _ in range(2):  # as a run before leaves it
        trainer.updater.bonus.observe(Mean(0.1, 10.0))
        trainer.updater.bonus.next_step(lambda own: [own])
    trainer.train()
    assert logged(trainer, "entropy_coef") == [0.0, 0.25, 0.5, 0.75]


def test_the_gap_to_the_sampler_is_measured_and_corrected(tmp_path, monkeypatch):
    """A sampler that reports every log-probability 0.5 too low: ratios of exp(0.5), capped."""
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    steps = {}
    for cap in (1.25, 8.0):
        recorder = Recorder(by_length)
        trainer = make(folder, tmp_path, recorder, rows(), importance_sampling_cap=cap)
        generate = trainer.engine.generate
        monkeypatch.setattr(trainer.engine, "generate", lambda *a, generate=generate: _lowered(generate(*a)))
        trainer.train()
        assert logged(trainer, "sampling/logp_gap/mean") == [pytest.approx(0.5, abs=1e-5)]
        assert logged(trainer, "sampling/importance_weight/max") == [
            pytest.approx(min(cap, math.exp(0.5)), abs=1e-5)
        ]
        steps[cap] = step_taken(trainer, folder)
        given = [min(cap, math.exp(0.5)) * a for a in advantages(recorder.all("rewards"), 4)]
        assert_step(trainer, folder, recorder, given)
    assert relative_error(steps[1.25], steps[8.0]) > 0.1


def _lowered(groups):
    for group in groups:
        completions = tuple(
            replace(c, policy_logprobs=tuple(p - 0.5 for p in c.plain_logprobs)) for c in group.completions
        )
        yield replace(group, completions=completions)


def test_a_sampler_that_agrees_is_not_corrected_at_all(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    on = train(folder, tmp_path, Recorder(by_length), rows())
    off = train(folder, tmp_path, Recorder(by_length), rows(), importance_sampling_correction=False)
    assert same(weights(on), weights(off))
    assert (
        logged(on, "sampling/importance_weight/min") == logged(on, "sampling/importance_weight/max") == [1.0]
    )
    assert logged(on, "sampling/logp_gap/max")[0] < 1e-4


@pytest.mark.parametrize(("every", "divergences"), [(1, [False, False, False]), (2, [False, True, False])])
def test_the_reference_moves_every_so_many_steps(tmp_path, every, divergences):
    trainer = train(
        tiny_policy(tmp_path / "m", scale=2.0),
        tmp_path,
        Recorder(REWARDS),
        rows(64),
        beta=0.1,
        max_steps=3,
        sync_ref_model=True,
        ref_model_sync_steps=every,
        ref_model_mixup_alpha=1.0,
    )
    assert [kl > 1e-6 for kl in logged(trainer, "kl")] == divergences


@pytest.mark.parametrize("estimator", ["rloo", "leave_one_out", "maxrl", "opo", "reinforce_pp", "pass_at_k"])
def test_every_estimator_trains(tmp_path, estimator):
    recorder = Recorder([0.1, 0.4, 0.2, 0.0, 0.7, 0.3, 0.9, 0.2])
    policy = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    trainer = train(policy, tmp_path, recorder, rows(), advantage_estimator=estimator)
    assert logged(trainer, "grad_norm")[0] > 0 and logged(trainer, "advantages/mean_abs")[0] > 0


def test_metrics_have_the_same_names_at_every_step(tmp_path):
    trainer = train(
        tiny_policy(tmp_path / "m", generation=MANY_ENDS),
        tmp_path,
        Recorder(by_length),
        rows(64),
        max_steps=3,
        beta=0.1,
        num_iterations=2,
        top_entropy_quantile=0.5,
        off_policy_mask_threshold=0.5,
        importance_sampling_mode="token_mask",
        use_adaptive_entropy=True,
    )
    entries = [e for e in trainer.state.log_history if "loss" in e]
    assert len({tuple(sorted(e)) for e in entries}) == 1
    assert all(math.isfinite(v) for e in entries for v in e.values())
    assert json.dumps(entries)
