"""Same seed, same run, bit for bit; stopped anywhere and resumed, the same run; evaluated or not, the same run."""

import json
import os
import signal

import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig

from covey.errors import CheckpointError, DatasetError
from covey.trainer.checkpoint.folders import checkpoints
from covey.trainer.stop_signals import RunStopped
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, Recorder, make, rows, same, train, weights

SETTINGS = dict(learning_rate=1e-2, optim="adamw_torch", lr_scheduler_type="cosine", max_steps=6)
VARIANTS = {
    "one step per round": dict(),
    "two steps per round": dict(per_device_train_batch_size=4, steps_per_generation=2),
    "three passes": dict(num_iterations=3),
    "passes and steps": dict(
        per_device_train_batch_size=4, steps_per_generation=2, num_iterations=2, beta=0.05
    ),
    "moving reference": dict(beta=0.05, sync_ref_model=True, ref_model_sync_steps=1),
    "adapter": dict(peft_config=LoraConfig(r=4, target_modules=["q_proj"]), beta=0.05),
}


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 5) for ids in completion_ids]


def numbers(trainer):
    """Every logged number but those of the clock and of the machine's memory."""
    timed = ("time/", "step_time", "memory/")
    return [
        {k: v for k, v in entry.items() if not k.startswith(timed)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]


def seen(recorder):
    return [(c["prompts"], c["ids"], c["rewards"]) for c in recorder.calls]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stop", [1, pytest.param(3, marks=pytest.mark.any_version)])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, variant, stop):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    settings = {**SETTINGS, **VARIANTS[variant], "save_strategy": "steps", "save_steps": stop}
    whole, rest = Recorder(by_ids), Recorder(by_ids)
    a = train(folder, tmp_path / "run", whole, rows(16), **settings)
    b = make(folder, tmp_path / "run", rest, rows(16), **settings)
    b.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{stop}"))
    assert same(weights(a), weights(b))
    assert seen(rest) == seen(whole)[len(whole.calls) - len(rest.calls) :]
    assert numbers(a) == numbers(b)


def test_metrics_that_were_not_logged_yet_survive(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 1, "logging_steps": 3}
    a = train(folder, tmp_path / "run", Recorder(by_ids), rows(16), **settings)
    b = make(folder, tmp_path / "run", Recorder(by_ids), rows(16), **settings)
    b.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    for key in ("reward", "completions/mean_length", "num_tokens", "ratio/mean"):
        assert [e[key] for e in numbers(a)] == [e[key] for e in numbers(b)], key


@pytest.mark.parametrize("stop", [1, 3])
def test_a_stream_resumes_where_it_was(tmp_path, stop):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)

    def stream():
        return IterableDataset.from_generator(lambda: iter(rows(10).to_list()))

    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": stop}
    a = train(folder, tmp_path / "run", Recorder(by_ids), stream(), **settings)
    b = make(folder, tmp_path / "run", Recorder(by_ids), stream(), **settings)
    b.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{stop}"))
    assert same(weights(a), weights(b))


def test_two_runs_with_the_same_seed_are_the_same_and_another_seed_is_not(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    runs = [train(folder, tmp_path / str(i), Recorder(by_ids), rows(16), **SETTINGS) for i in range(2)]
    other = train(folder, tmp_path / "other", Recorder(by_ids), rows(16), **SETTINGS, seed=2)
    assert same(weights(runs[0]), weights(runs[1])) and numbers(runs[0]) == numbers(runs[1])
    assert not same(weights(runs[0]), weights(other))


def test_what_else_draws_random_numbers_does_not_matter(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)

    def noisy(completions, completion_ids, **_):
        torch.rand(17)
        return by_ids(completion_ids)

    a = train(folder, tmp_path / "a", Recorder(by_ids), rows(16), **SETTINGS)
    b = train(folder, tmp_path / "b", noisy, rows(16), **SETTINGS)
    assert same(weights(a), weights(b))


def test_evaluation_leaves_no_trace(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    plain = train(folder, tmp_path / "a", Recorder(by_ids), rows(16), **SETTINGS)
    evaluated = train(
        folder,
        tmp_path / "b",
        Recorder(by_ids),
        rows(16),
        **SETTINGS,
        eval_dataset=rows(5),
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        per_device_eval_batch_size=2,
        num_generations_eval=1,
    )
    assert same(weights(plain), weights(evaluated)) and numbers(plain) == numbers(evaluated)


def test_resuming_with_other_batch_settings_is_refused_inside_a_round(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 1}
    train(folder, tmp_path / "run", Recorder(by_ids), rows(16), **settings, num_iterations=3)
    other = make(folder, tmp_path / "run", Recorder(by_ids), rows(16), **settings, num_iterations=2)
    with pytest.raises(CheckpointError, match=r"made with other settings: num_iterations=2 \(it was 3\)"):
        other.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))


def test_the_completions_file_of_a_resumed_run_has_every_step_once(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2, "log_completions": True}
    train(folder, tmp_path / "run", Recorder(by_ids, "mine"), rows(16), **settings)
    first = (tmp_path / "run" / "completions.jsonl").read_text()
    again = make(folder, tmp_path / "run", Recorder(by_ids, "mine"), rows(16), **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "completions.jsonl").read_text().splitlines()]
    assert (tmp_path / "run" / "completions.jsonl").read_text() == first
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert len(lines) == 6 * 8 and {"prompt", "completion", "mine", "reward", "advantage", "group"} <= set(
        lines[0]
    )


def test_map_style_and_stream_give_the_same_groups(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    a, b = Recorder(by_ids), Recorder(by_ids)
    dataset = rows(8)
    left = train(folder, tmp_path / "a", a, dataset, **SETTINGS | {"max_steps": 4}, shuffle_dataset=False)
    stream = dataset.to_iterable_dataset()
    right = train(folder, tmp_path / "b", b, stream, **SETTINGS | {"max_steps": 4})
    assert seen(a) == seen(b) and same(weights(left), weights(right))


def test_each_prompt_once_per_epoch_in_another_order_each_time(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    recorder = Recorder(by_ids)
    train(folder, tmp_path, recorder, rows(8), **SETTINGS | {"max_steps": 8})
    prompts = recorder.all("prompts")[::4]
    for epoch in (prompts[:8], prompts[8:]):
        assert sorted(epoch) == sorted(rows(8)["prompt"])
    assert prompts[:8] != prompts[8:]


def test_without_shuffling_prompts_come_in_the_datasets_order(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    recorder = Recorder(by_ids)
    train(folder, tmp_path, recorder, rows(8), **SETTINGS | {"max_steps": 8}, shuffle_dataset=False)
    assert recorder.all("prompts")[::4] == list(rows(8)["prompt"]) * 2


def test_a_list_of_rows_is_a_dataset(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    a = train(folder, tmp_path / "a", Recorder(by_ids), rows(8), **SETTINGS)
    b = train(folder, tmp_path / "b", Recorder(by_ids), rows(8).to_list(), **SETTINGS)
    assert same(weights(a), weights(b))


def test_a_dataset_of_one_prompt_is_cycled(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    recorder = Recorder(by_ids)
    with pytest.warns(UserWarning, match="repeated within a round"):
        trainer = train(
            folder, tmp_path, recorder, Dataset.from_dict({"prompt": ["abc"]}), num_train_epochs=1
        )
    assert trainer.state.global_step == 1
    assert recorder.calls[0]["ids"][:4] != recorder.calls[0]["ids"][4:], "the repeated prompt is sampled anew"


def stopped_at(step):
    """A reward during which SIGTERM comes in a step."""

    def recorder(completion_ids, trainer_state, **_):
        if trainer_state.global_step == step - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return by_ids(completion_ids)

    return recorder


def test_a_fresh_run_does_not_go_on_from_the_checkpoints_of_the_run_before(tmp_path, capsys):
    folder, run = tiny_policy(tmp_path / "m", generation=MANY_ENDS), tmp_path / "run"
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    train(folder, run, Recorder(by_ids), rows(16), **settings)
    before = make(folder, run, stopped_at(1), rows(16), **settings)
    with pytest.raises(RunStopped) as stop:
        before.train()
    assert f"Saved in {run / 'checkpoint-1'}. To go on" in stop.value.message
    assert list(checkpoints(run)) == [1]
    (aside,) = run.glob("_checkpoints-*")
    (record,) = run.glob("record-*")
    assert list(checkpoints(aside)) == [4, 6]
    assert aside.name.removeprefix("_checkpoints") == record.name.removeprefix("record")
    assert f"are now in {aside}." in capsys.readouterr().out
    after = make(folder, run, Recorder(by_ids), rows(16), **settings)
    after.train(resume_from_checkpoint="auto")
    whole = train(folder, tmp_path / "whole", Recorder(by_ids), rows(16), **settings)
    assert numbers(after) == numbers(whole) and same(weights(after), weights(whole))
    assert list(checkpoints(run)) == [4, 6] and list(checkpoints(aside)) == [4, 6]


def test_a_run_that_goes_back_does_not_find_its_undone_steps_again(tmp_path):
    folder, run = tiny_policy(tmp_path / "m", generation=MANY_ENDS), tmp_path / "run"
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2}
    train(folder, run, Recorder(by_ids), rows(16), **settings)
    with pytest.raises(RunStopped) as stop:
        make(folder, run, stopped_at(3), rows(16), **settings).train(str(run / "checkpoint-2"))
    assert f"Saved in {run / 'checkpoint-3'}. To go on" in stop.value.message
    assert list(checkpoints(run)) == [2, 3]


@pytest.mark.parametrize("save_steps", [1, 100])
def test_a_row_that_cannot_be_used_costs_no_step(tmp_path, save_steps, monkeypatch):
    monkeypatch.setattr(
        "covey.trainer.checks.MOST_RENDERED", 0
    )  # as where the row stands behind the first thousand
    folder, run = tiny_policy(tmp_path / "m", generation=MANY_ENDS), tmp_path / "run"
    settings = {**SETTINGS, "shuffle_dataset": False, "save_strategy": "steps", "save_steps": save_steps}
    settings |= {"use_adaptive_entropy": True, "entropy_target": 4.0}
    mended = rows(16)
    broken = Dataset.from_list([*mended.to_list()[:7], {"prompt": "say " * 2000}, *mended.to_list()[8:]])
    stopped = make(folder, run, Recorder(by_ids), broken, **settings)
    with pytest.raises(
        DatasetError, match=f"Row 7: .* The run is saved in {run / 'checkpoint-3'}: mend the row"
    ):
        stopped.train()
    resumed = make(folder, run, Recorder(by_ids), mended, **settings)
    resumed.train(resume_from_checkpoint=True)
    whole = train(folder, tmp_path / "whole", Recorder(by_ids), mended, **settings)
    assert numbers(resumed) == numbers(whole) and same(weights(resumed), weights(whole))
