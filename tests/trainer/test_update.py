"""One optimizer step against the slow oracle: masks, losses, cuts, temperature, None, weights."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny import tiny_policy, tiny_tokenizer
from tests.trainer.harness import (
    MANY_ENDS,
    Recorder,
    advantages,
    by_length,
    chats,
    expected_step,
    logged,
    relative_error,
    rows,
    step_taken,
    train,
)

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]


def assert_step(trainer, folder, recorder, given=None, tolerance=1e-4, **oracle):
    given = given if given is not None else advantages(recorder.all("rewards"), 4)
    expected = expected_step(folder, recorder.all("prompts"), recorder.all("ids"), given, **oracle)
    assert relative_error(step_taken(trainer, folder), expected) < tolerance


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "mistral", "gpt2"])
def test_one_step_is_the_oracles_on_every_architecture(tmp_path, kind):
    folder = tiny_policy(tmp_path / "m", kind, scale=3.0, generation=MANY_ENDS)
    recorder = Recorder(REWARDS)
    assert_step(train(folder, tmp_path, recorder, rows()), folder, recorder)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize(("micro", "accumulation"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_the_step_does_not_depend_on_the_cut(tmp_path, loss_type, micro, accumulation):
    folder = tiny_policy(tmp_path / "m", scale=4.0, generation=MANY_ENDS)
    recorder = Recorder(by_length)
    trainer = train(
        folder,
        tmp_path,
        recorder,
        rows(),
        loss_type=loss_type,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
    )
    assert len({len(i) for i in recorder.all("ids")}) > 2, "the law needs completions of different lengths"
    assert_step(trainer, folder, recorder, loss_type=loss_type)


@pytest.mark.parametrize("micro", [8, 2])
def test_bnpo_is_a_mean_over_micro_batches(tmp_path, micro):
    folder = tiny_policy(tmp_path / "m", scale=4.0, generation=MANY_ENDS)
    recorder = Recorder(by_length)
    trainer = train(
        folder,
        tmp_path,
        recorder,
        rows(),
        loss_type="bnpo",
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=8 // micro,
    )
    assert_step(trainer, folder, recorder, loss_type="bnpo", micro=micro)


@pytest.mark.parametrize("checkpointing", [{"use_reentrant": True}, {"use_reentrant": False}])
def test_gradient_checkpointing_changes_nothing(tmp_path, checkpointing):
    folder = tiny_policy(tmp_path / "m", scale=3.0, generation=MANY_ENDS)
    recorder = Recorder(REWARDS)
    trainer = train(
        folder,
        tmp_path,
        recorder,
        rows(),
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs=checkpointing,
    )
    assert_step(trainer, folder, recorder)


def test_chats_and_temperature(tmp_path):
    folder = tiny_policy(tmp_path / "m", scale=4.0, generation=MANY_ENDS)
    recorder = Recorder(REWARDS)
    assert_step(
        train(folder, tmp_path, recorder, chats(), temperature=0.6), folder, recorder, temperature=0.6
    )


def test_what_nothing_scored_is_out_of_the_statistics_and_gets_no_advantage(tmp_path):
    values = [-1.0, -1.0, None, 0.5, 0.0, 1.0, 0.0, 0.0]
    folder = tiny_policy(tmp_path / "m")
    recorder = Recorder(values)
    trainer = train(folder, tmp_path, recorder, rows())
    given = advantages(values, 4)
    # worked numbers of field-issues.md, section 4, case 3
    assert given[:4] == pytest.approx([-0.57728, -0.57728, 0.0, 1.15457], abs=1e-5)
    assert_step(trainer, folder, recorder, given)
    assert logged(trainer, "reward/unscored") == [1 / 8]


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
def test_a_step_without_any_score_moves_nothing(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    trainer = train(folder, tmp_path, Recorder([None] * 8), rows())
    assert all(not change.any() for change in step_taken(trainer, folder).values())


def test_two_tasks_with_a_reward_each_train_as_one_would(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    dataset = rows(2, task=["math", "code"])

    def math(completions, task, **_):
        return [float(i % 2 == 0) if t == "math" else None for i, t in enumerate(task)]

    def code(completions, task, **_):
        return [float(i % 3 == 0) if t == "code" else None for i, t in enumerate(task)]

    witness = Recorder([0.0] * 8, "witness")
    trainer = train(folder, tmp_path, [math, code, witness], dataset, reward_weights=[1, 1, 0])
    tasks = witness.calls[0]["columns"]["task"]
    merged = [float(i % 2 == 0) if t == "math" else float(i % 3 == 0) for i, t in enumerate(tasks)]
    assert_step(trainer, folder, witness, advantages(merged, 4))


def test_weights_are_in_the_advantages_and_in_the_log(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    a, b = Recorder([1.0, 0, 1, 0, 1, 1, 0, 0], "a"), Recorder([0.0, 0, 1, 1, 0, 1, 0, 1], "b")
    trainer = train(folder, tmp_path, [a, b], rows(), reward_weights=[0.7, 0.3])
    total = [0.7 * x + 0.3 * y for x, y in zip(a.values, b.values, strict=True)]
    assert_step(trainer, folder, a, advantages(total, 4))
    assert logged(trainer, "reward") == pytest.approx([sum(total) / 8])


@pytest.mark.parametrize("pad", ["<pad>", "<eos>"])
def test_masked_truncated_completions_leave_numerator_and_denominator(tmp_path, pad):
    tokenizer = tiny_tokenizer(pad=pad)
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS, tokenizer=tokenizer)
    recorder = Recorder(REWARDS)
    trainer = train(
        folder, tmp_path, recorder, rows(), mask_truncated_completions=True, max_completion_length=6
    )
    kept = [i[-1] in MANY_ENDS["eos_token_id"] for i in recorder.all("ids")]
    assert any(kept) and not all(kept), "the law needs both kinds"
    assert_step(trainer, folder, recorder, kept=kept)
    assert logged(trainer, "completions/clipped_ratio") == [kept.count(False) / 8]


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
def test_all_completions_masked_is_a_step_of_zero(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    trainer = train(
        folder, tmp_path, Recorder(REWARDS), rows(), mask_truncated_completions=True, max_completion_length=1
    )
    assert logged(trainer, "loss") == [0.0]
    assert all(not change.any() for change in step_taken(trainer, folder).values())


def test_dropout_of_the_model_is_switched_off(tmp_path):
    folder = tiny_policy(tmp_path / "m", "gpt2", resid_pdrop=0.3, embd_pdrop=0.3, attn_pdrop=0.3)
    recorder = Recorder(REWARDS)
    trainer = train(folder, tmp_path, recorder, rows(), beta=0.1)
    assert logged(trainer, "kl")[0] == pytest.approx(0.0, abs=1e-6)
    assert_step(trainer, folder, recorder)


def test_later_passes_see_a_moved_policy_and_clip(tmp_path):
    folder = tiny_policy(tmp_path / "m", scale=4.0)
    trainer = train(
        folder,
        tmp_path,
        Recorder(REWARDS),
        rows(),
        num_iterations=4,
        max_steps=4,
        learning_rate=2.0,
    )
    assert logged(trainer, "ratio/mean")[0] == pytest.approx(1.0, abs=1e-6)
    assert logged(trainer, "clip_ratio/region_mean")[0] == 0.0
    assert max(logged(trainer, "clip_ratio/region_mean")[1:]) > 0.0


def test_several_steps_per_generation_each_train_on_their_own_completions(tmp_path):
    """The second step's update is a clipped step from the first step's weights, on its own group alone."""
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    recorder = Recorder(REWARDS)
    trainer = train(
        folder,
        tmp_path,
        recorder,
        rows(),
        per_device_train_batch_size=4,
        steps_per_generation=2,
        max_steps=2,
        learning_rate=1e-3,
    )
    assert len(recorder.calls) == 1 and len(recorder.calls[0]["ids"]) == 8
    first = expected_step(
        folder, recorder.all("prompts")[:4], recorder.all("ids")[:4], advantages(REWARDS[:4], 4)
    )
    moved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            parameter += 1e-3 * first[name].float()
    moved.save_pretrained(tmp_path / "moved")
    (tmp_path / "moved" / "tokenizer.json").write_text((tmp_path / "m" / "tokenizer.json").read_text())
    (tmp_path / "moved" / "tokenizer_config.json").write_text(
        (tmp_path / "m" / "tokenizer_config.json").read_text()
    )
    second = expected_step(
        str(tmp_path / "moved"),
        recorder.all("prompts")[4:],
        recorder.all("ids")[4:],
        advantages(REWARDS[4:], 4),
    )
    got = step_taken(trainer, folder)
    # The ratio of the second step is 1 to first order in the learning rate.
    assert relative_error(got, {n: 1e-3 * (first[n] + second[n]) for n in first}) < 5e-3


def test_bf16_computes_in_half_precision_and_keeps_float32_weights(tmp_path):
    from covey.config.hardware import cpu_computes_bf16

    if not cpu_computes_bf16():
        pytest.skip("this processor has no bfloat16 arithmetic")
    folder = tiny_policy(tmp_path / "m", scale=2.0)
    recorder = Recorder(REWARDS)
    trainer = train(folder, tmp_path, recorder, rows(), bf16=True)
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
    assert_step(trainer, folder, recorder, tolerance=0.05)
