"""The reward contract, through the trainer: signatures, shapes, names, columns, models, failures."""

import asyncio
import functools

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from covey.errors import ConfigError, CoveyWarning, LoadingError, RewardError
from tests.tiny import tiny_policy, tiny_reward_model, tiny_tokenizer
from tests.trainer.harness import Recorder, by_length, chats, logged, make, rows, train

pytestmark = pytest.mark.any_version

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]


def constant(completions, **_):
    return REWARDS[: len(completions)]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda n: [1.0],
        lambda n: [1.0] * (n - 1),
        lambda n: [1.0] * (n + 1),
        lambda n: dict.fromkeys(range(n), 1.0),
        lambda n: None,
        lambda n: 1.0,
        lambda n: "x" * n,
        lambda n: ["1"] * n,
        lambda n: [[1.0]] * n,
        lambda n: torch.ones(n, 2),
    ],
    ids=["one", "short", "long", "dict", "none", "scalar", "text", "texts", "lists", "matrix"],
)
def test_a_wrong_result_names_the_reward_and_what_came(tmp_path, wrong):
    def offending(completions):
        return wrong(len(completions))

    with pytest.raises(RewardError) as error:
        train(tiny_policy(tmp_path / "m"), tmp_path, offending, rows())
    assert "'offending'" in str(error.value) and "number" in str(error.value), str(error.value)


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        torch.tensor,
        lambda v: torch.tensor(v).numpy(),
        lambda v: (x for x in v),
        lambda v: [bool(x) for x in v],
    ],
)
def test_every_right_form_is_taken(tmp_path, form):
    trainer = train(
        tiny_policy(tmp_path / "m"), tmp_path, lambda completions: form(REWARDS[: len(completions)]), rows()
    )
    assert logged(trainer, "reward") == [0.5]


def test_every_kind_of_callable_has_a_metric_of_its_own(tmp_path):
    def base(completions, w=1, **_):
        return [w * float(i % 2) for i, _ in enumerate(completions)]

    class Judge:
        def __call__(self, completions, **_):
            return REWARDS[: len(completions)]

        def method(self, completions, **_):
            return REWARDS[: len(completions)]

    async def coroutine(completions, **_):
        return REWARDS[: len(completions)]

    rewards = [
        functools.partial(base, w=2),
        functools.partial(base, w=3),
        Judge(),
        Judge().method,
        lambda completions: REWARDS[: len(completions)],
        lambda completions: REWARDS[: len(completions)],
        coroutine,
        tiny_reward_model(tmp_path / "judge"),
    ]
    trainer = train(tiny_policy(tmp_path / "m"), tmp_path, rewards, rows())
    names = [r.name for r in trainer.scorer.rewards]
    assert names == ["base", "base_2", "Judge", "method", "lambda", "lambda_2", "coroutine", "judge"]
    assert all(logged(trainer, f"rewards/{name}/mean") for name in names)
    assert logged(trainer, "rewards/base/mean") == [1.0] and logged(trainer, "rewards/base_2/mean") == [1.5]


def test_only_what_a_signature_names_is_passed(tmp_path):
    seen = {}

    def narrow(completions, answer):
        seen["narrow"] = answer
        return REWARDS[: len(completions)]

    def wide(**everything):
        seen["wide"] = set(everything)
        return REWARDS[: len(everything["completions"])]

    def stateful(completions, trainer_state):
        seen["step"] = trainer_state.global_step
        return REWARDS[: len(completions)]

    train(
        tiny_policy(tmp_path / "m"),
        tmp_path,
        [narrow, wide, stateful],
        rows(8, answer=list("abcdefgh")),
        max_steps=3,
    )
    assert len(seen["narrow"]) == 8 and len(set(seen["narrow"])) == 2
    assert {
        "prompts",
        "completions",
        "completion_ids",
        "group_ids",
        "answer",
        "log_extra",
        "log_metric",
    } <= seen["wide"]
    assert "prompt" not in seen["wide"]
    assert seen["step"] == 2


def test_columns_of_any_shape_reach_rewards_untouched(tmp_path):
    recorder = Recorder(by_length)
    dataset = rows(8, tests=[[{"in": str(i), "out": "x"}] for i in range(8)], meta=[None, "m"] * 4)
    train(tiny_policy(tmp_path / "m"), tmp_path, recorder, dataset)
    columns = recorder.calls[0]["columns"]
    assert columns["tests"][0] == columns["tests"][3] != columns["tests"][4]
    assert columns["tests"][0][0]["out"] == "x" and set(columns["meta"]) <= {None, "m"}
    assert columns["group_ids"] == [0] * 4 + [1] * 4


def test_a_missing_column_is_reported_before_anything_is_loaded(tmp_path):
    def needs_target(completions, target):
        return REWARDS

    with pytest.raises(RewardError, match=r"'needs_target' needs 'target'.*train_dataset.*'answer'"):
        make(str(tmp_path / "there is no model here"), tmp_path, needs_target, rows(8, answer=["a"] * 8))
    with pytest.raises(RewardError, match=r"needs 'target'.*eval_dataset"):
        make("none", tmp_path, needs_target, rows(8, target=["a"] * 8), eval_dataset=rows(2))


def test_a_column_that_covey_fills_itself_is_reported(tmp_path):
    with pytest.warns(CoveyWarning, match="'completions'"):
        make(tiny_policy(tmp_path / "m"), tmp_path, constant, rows(8, completions=["a"] * 8))


def test_coroutines_run_together_and_inside_a_running_loop(tmp_path):
    begun = []

    def waiting():
        async def reward(completions):
            begun.append(None)
            async with asyncio.timeout(60):
                while len(begun) < 3:
                    await asyncio.sleep(0.01)
            return REWARDS[: len(completions)]

        return reward

    trainer = make(tiny_policy(tmp_path / "m"), tmp_path, [waiting(), waiting(), waiting()], rows())

    async def notebook():
        trainer.train()

    asyncio.run(notebook())  # nothing waits for a loop that is busy
    assert len(begun) == 3, "each has waited until all had begun"


def test_notes_become_columns_and_metrics(tmp_path):
    def noting(completions, log_extra, log_metric):
        log_extra("parsed", [None if i % 2 else float(i) for i in range(len(completions))])
        log_extra("said", [f"<{c}>" for c in completions])
        log_metric("accuracy", 0.25)
        return REWARDS[: len(completions)]

    trainer = train(tiny_policy(tmp_path / "m"), tmp_path, noting, rows(), log_completions=True)
    assert logged(trainer, "parsed") == [3.0] and logged(trainer, "accuracy") == [0.25]
    lines = (tmp_path / "completions.jsonl").read_text().splitlines()
    assert len(lines) == 8 and '"parsed": 0.0' in lines[0] and '"parsed": null' in lines[1]


def test_notes_of_the_wrong_length_name_both_numbers(tmp_path):
    def noting(completions, log_extra):
        log_extra("parsed", [1.0])
        return REWARDS[: len(completions)]

    with pytest.raises(RewardError, match=r"log_extra\('parsed'.*1 values for 8 completions"):
        train(tiny_policy(tmp_path / "m"), tmp_path, noting, rows())


def test_a_reward_that_raises_stops_the_run_with_its_name_and_a_sample(tmp_path):
    def broken(completions):
        raise KeyError("gold")

    with pytest.raises(RewardError, match=r"'broken' raised KeyError: 'gold'") as error:
        train(tiny_policy(tmp_path / "m"), tmp_path, broken, rows())
    assert isinstance(error.value.__cause__, KeyError)


def test_a_value_that_is_not_finite_leaves_its_sample_out(tmp_path):
    trainer = train(
        tiny_policy(tmp_path / "m"),
        tmp_path,
        [lambda completions: [float("nan"), *REWARDS[1:]], constant],
        rows(),
    )
    assert logged(trainer, "rewards/lambda/failed") == [1 / 8]
    assert logged(trainer, "rewards/lambda/count") == [7.0]
    values = [2 * r for r in REWARDS[1:]]
    assert logged(trainer, "reward") == pytest.approx([sum(values) / 7])


def test_no_number_is_nan_and_the_keys_stay_the_same_when_tasks_alternate(tmp_path):
    dataset = rows(4, task=["a", "b", "a", "b"])

    def for_a(completions, task):
        return [float(i) if t == "a" else None for i, t in enumerate(task)]

    def for_b(completions, task):
        return [float(i) if t == "b" else None for i, t in enumerate(task)]

    trainer = train(
        tiny_policy(tmp_path / "m"),
        tmp_path,
        [for_a, for_b],
        dataset,
        per_device_train_batch_size=4,
        max_steps=4,
        shuffle_dataset=False,
    )
    steps = [e for e in trainer.state.log_history if "loss" in e]
    assert len({frozenset(e) for e in steps}) == 1
    assert all(v == v for e in steps for v in e.values())
    assert logged(trainer, "rewards/for_a/count") == [4.0, 0.0, 4.0, 0.0]
    assert logged(trainer, "rewards/for_a/mean") == [1.5] * 4, "a number without samples is the last one"


def test_wrong_numbers_of_weights_and_tokenizers_state_both(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"3 weights for 2 rewards"):
        make(folder, tmp_path, [constant, constant], rows(), reward_weights=[1, 2, 3])
    with pytest.raises(LoadingError, match=r"3 for 2 rewards"):
        make(folder, tmp_path, [constant, constant], rows(), reward_processing_classes=[None] * 3)
    with pytest.raises(RewardError, match="empty"):
        make(folder, tmp_path, [], rows())
    with pytest.raises(RewardError, match="cannot be called"):
        make(folder, tmp_path, [7], rows())


def test_each_reward_model_has_a_tokenizer_and_no_reward_is_dropped(tmp_path):
    judge, policy = tiny_reward_model(tmp_path / "judge"), tiny_policy(tmp_path / "m")
    module = AutoModelForSequenceClassification.from_pretrained(judge)
    rewards, own = [judge, constant, module], tiny_tokenizer()
    with pytest.raises(LoadingError, match=r"1 for 3 rewards; the numbers must match"):
        make(policy, tmp_path, rewards, chats(), reward_processing_classes=own)
    trainer = train(policy, tmp_path, rewards, chats(), reward_processing_classes=[own, None, own])
    means = [logged(trainer, f"rewards/{r.name}/mean")[0] for r in trainer.scorer.rewards]
    assert len(means) == 3 and means[0] == pytest.approx(means[2])


def test_untrained_heads_and_two_labels_are_refused(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    with pytest.raises(LoadingError, match="2 labels"):
        make(folder, tmp_path, tiny_reward_model(tmp_path / "two", num_labels=2), rows())
    with pytest.raises(LoadingError, match="not a trained reward model"):
        make(folder, tmp_path, folder, rows())


def test_rewards_see_whole_groups_in_training_and_every_row_in_evaluation(tmp_path):
    recorder = Recorder(by_length)
    trainer = make(
        tiny_policy(tmp_path / "m"),
        tmp_path,
        recorder,
        rows(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        eval_dataset=rows(5),
        per_device_eval_batch_size=3,
        num_generations_eval=1,
    )
    trainer.train()
    assert [len(c["ids"]) for c in recorder.calls] == [8]
    metrics = trainer.evaluate()
    assert sorted(p for c in recorder.calls[1:] for p in c["prompts"]) == sorted(rows(5)["prompt"])
    assert metrics["eval_reward"] == pytest.approx(
        sum(r for c in recorder.calls[1:] for r in c["rewards"]) / 5
    )


def test_the_best_checkpoint_by_reward_is_kept_and_loaded(tmp_path):
    """Evaluation rewards 0.1, 0.9, 0.5: the second checkpoint is the best."""
    evaluations = iter([0.1, 0.9, 0.5])

    def scripted(completions, prompts):
        if len(completions) == 2:
            value = next(evaluations)
            return [value] * 2
        return REWARDS[: len(completions)]

    trainer = train(
        tiny_policy(tmp_path / "m"),
        tmp_path / "run",
        scripted,
        rows(),
        max_steps=3,
        eval_dataset=rows(2),
        num_generations_eval=1,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
    )
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    assert trainer.state.best_metric == pytest.approx(0.9)


def test_several_evaluation_sets_by_name(tmp_path):
    trainer = make(
        tiny_policy(tmp_path / "m"),
        tmp_path,
        Recorder(by_length),
        rows(),
        eval_dataset={"easy": rows(2), "hard": rows(3)},
    )
    metrics = trainer.evaluate()
    assert {"eval_easy_reward", "eval_hard_reward", "eval_hard_completions/mean_length"} <= set(metrics)
