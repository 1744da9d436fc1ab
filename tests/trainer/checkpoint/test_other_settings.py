"""Law: a run that goes on acts on its present settings, or says by name why not; what cannot be read is named with its file."""

import json

import pytest
import torch

from covey.errors import CheckpointError
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, by_length, logged, make, rows, same, train, weights

SAVES = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.01}
INSIDE = {
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 2,
    "per_device_train_batch_size": 4,
    "num_generations": 4,
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), generation=MANY_ENDS)


def go_on(policy, folder, step, **given):
    trainer = make(policy, folder, by_length, rows(), **{**SAVES, **given})
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    return trainer


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_beyond_the_end_of_the_old_schedule_the_rates_are_those_of_the_new_one(schedule, policy, tmp_path):
    given = {"lr_scheduler_type": schedule, **SAVES}
    train(policy, tmp_path / "a", by_length, rows(), max_steps=2, **given)
    resumed = go_on(policy, tmp_path / "a", 2, max_steps=4, lr_scheduler_type=schedule)
    whole = train(policy, tmp_path / "b", by_length, rows(), max_steps=4, **given)
    assert (
        logged(resumed, "learning_rate")[2:] == logged(whole, "learning_rate")[2:]
        and logged(resumed, "learning_rate")[2] > 0
    )


@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
@pytest.mark.parametrize("name, value", [("learning_rate", 1e-3), ("weight_decay", 0.5)])
def test_changed_numbers_of_the_optimizer_act(name, value, optim, policy, tmp_path):
    plain = train(
        policy, tmp_path, by_length, rows(), max_steps=2, optim=optim, lr_scheduler_type="linear", **SAVES
    )
    again = go_on(policy, tmp_path, 1, max_steps=2, optim=optim, lr_scheduler_type="linear")
    assert same(weights(plain), weights(again))
    changed = go_on(
        policy, tmp_path, 1, max_steps=2, optim=optim, lr_scheduler_type="linear", **{name: value}
    )
    assert not same(weights(plain), weights(changed))
    assert logged(changed, "learning_rate")[-1] == (value / 2 if name == "learning_rate" else 0.005)


def test_a_schedule_that_cannot_follow_says_so(policy, tmp_path):
    given = {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "max_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 1,
    }
    given["metric_for_best_model"] = "reward"
    make(policy, tmp_path, by_length, rows(), eval_dataset=rows(2), **{**SAVES, **given}).train()
    trainer = make(
        policy, tmp_path, by_length, rows(), eval_dataset=rows(2), **{**SAVES, **given, "learning_rate": 0.5}
    )
    with pytest.warns(match="learning_rate=0.5 has no effect"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@pytest.mark.parametrize(
    "name, value",
    [
        ("per_device_train_batch_size", 8),
        ("num_generations", 2),
        ("steps_per_generation", 4),
        ("seed", 7),
        ("num_iterations", 2),
        ("max_completion_length", 6),
    ],
)
def test_inside_a_round_of_sampling_its_settings_are_refused_by_name(name, value, policy, tmp_path):
    train(policy, tmp_path, by_length, rows(), max_steps=3, **SAVES, **INSIDE)
    with pytest.raises(CheckpointError, match=f"{name}={value}"):
        go_on(policy, tmp_path, 1, max_steps=3, **{**INSIDE, name: value})


def test_between_two_rounds_they_act(policy, tmp_path):
    train(policy, tmp_path, by_length, rows(), max_steps=3, **SAVES)
    assert go_on(policy, tmp_path, 1, max_steps=3, seed=7).state.global_step == 3


def test_another_dataset_is_said(policy, tmp_path):
    train(policy, tmp_path, by_length, rows(), max_steps=2, **SAVES)
    trainer = make(policy, tmp_path, by_length, rows(6), max_steps=2, **SAVES)
    with pytest.warns(match="train_dataset is another"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@pytest.mark.parametrize(
    "damage",
    [
        {"position": 1},
        {"iterations": 1, "position": 1, "batches": [{"rows": [0]}]},
        [],
        {"batches": None, "position": 1},
    ],
)
def test_a_round_of_another_version_is_a_checkpoint_error_with_its_file(damage, policy, tmp_path):
    train(policy, tmp_path, by_length, rows(), max_steps=3, **SAVES, **INSIDE)
    folder = tmp_path / "checkpoint-1" / "covey"
    (folder / "rank0.json").write_text(json.dumps(damage))
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="rank0"):
        go_on(policy, tmp_path, 1, max_steps=3, **INSIDE)


class Code:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize(
    "name", ["covey/rank0.pt", "covey/rewards0.pt", "covey/reference.pt", "optimizer.pt", "scheduler.pt"]
)
def test_files_that_hold_code_are_named_and_not_run(name, policy, tmp_path, capsys):
    given = {"max_steps": 3, "beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, **INSIDE}
    train(policy, tmp_path, by_length, rows(), **SAVES, **given)
    (tmp_path / "checkpoint-1" / "covey" / "manifest.json").unlink()
    torch.save(Code(), tmp_path / "checkpoint-1" / name)
    with pytest.raises(
        CheckpointError, match=name.split("/")[-1].removesuffix(".pt") if "/" in name else "checkpoint-1"
    ):
        go_on(policy, tmp_path, 1, **given)
    assert "ran" not in capsys.readouterr().out


def test_a_reward_that_cannot_go_on_is_named(policy, tmp_path):
    class Forgets:
        __name__ = "forgets"

        def __call__(self, completions):
            return [float(len(c)) for c in completions]

        def state_dict(self):
            return {"old": 1}

        def load_state_dict(self, state):
            state["new"]

    train(policy, tmp_path, Forgets(), rows(), max_steps=2, **SAVES)
    trainer = make(policy, tmp_path, Forgets(), rows(), max_steps=2, **SAVES)
    with pytest.raises(CheckpointError, match=r"'forgets'.*KeyError"):
        trainer.train(resume_from_checkpoint=True)


def test_tied_weights_are_not_called_missing(tmp_path, caplog):
    policy = tiny_policy(tmp_path / "m", "llama")
    train(policy, tmp_path / "o", by_length, rows(), max_steps=2, **SAVES)
    go_on(policy, tmp_path / "o", 1, max_steps=2)
    assert "missing keys" not in caplog.text


@pytest.mark.parametrize("evaluates", [("before",), ("after",), ("before", "after")], ids="-".join)
def test_evaluations_around_training_are_in_the_record(evaluates, policy, tmp_path):
    from covey.runs.record import schema
    from covey.runs.record.reader import read_evaluations

    trainer = make(policy, tmp_path, by_length, rows(), eval_dataset=rows(3), max_steps=2)
    if "before" in evaluates:
        trainer.evaluate()
    trainer.train()
    if "after" in evaluates:
        trainer.evaluate()
    found = read_evaluations(tmp_path / "record")
    assert [line["step"] for line in found] == [{"before": 0, "after": 2}[e] for e in evaluates]
    assert len(list((tmp_path / "record" / schema.EVALUATION_ROWS).glob("*.parquet"))) == len(evaluates)
    events = [
        json.loads(line)["kind"] for line in (tmp_path / "record" / "events.jsonl").read_text().splitlines()
    ]
    assert events[-1] == "finished"


def test_the_last_entry_has_the_metrics_of_the_steps_that_were_not_logged(policy, tmp_path):
    each = train(policy, tmp_path / "a", by_length, rows(), max_steps=3)
    some = train(policy, tmp_path / "b", by_length, rows(), max_steps=3, logging_steps=2)
    last = some.state.log_history[-1]
    assert (
        last["rewards/by_length/mean"] == logged(each, "rewards/by_length/mean")[2] and "train_loss" in last
    )
    assert last["num_tokens"] == each.state.log_history[-2]["num_tokens"]
    assert "rewards/by_length/mean" not in each.state.log_history[-1]


@pytest.mark.parametrize(
    "given", [{"beta": 0.5}, {"entropy_coef": 0.5}, {"beta": 0.5, "entropy_coef": 0.5}], ids=str
)
def test_the_loss_is_policy_loss_and_its_other_terms(given, policy, tmp_path):
    plain = train(
        policy,
        tmp_path / "a",
        by_length,
        rows(),
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
    )
    mixed = train(
        policy,
        tmp_path / "b",
        by_length,
        rows(),
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
        **given,
    )
    assert not logged(plain, "policy_loss")
    assert logged(mixed, "policy_loss")[0] == pytest.approx(logged(plain, "loss")[0], abs=1e-6)
    others = (
        given.get("beta", 0) * (logged(mixed, "kl") or [0.0])[0]
        - given.get("entropy_coef", 0) * logged(mixed, "entropy")[0]
    )
    assert logged(mixed, "loss")[0] == pytest.approx(logged(mixed, "policy_loss")[0] + others, abs=1e-5)


def test_the_loss_of_an_evaluation_is_minus_its_reward(policy, tmp_path):
    found = make(policy, tmp_path, by_length, rows(), eval_dataset={"a": rows(2), "b": rows(3)}).evaluate()
    assert found["eval_a_loss"] == -found["eval_a_reward"] and found["eval_b_loss"] == -found["eval_b_reward"]
