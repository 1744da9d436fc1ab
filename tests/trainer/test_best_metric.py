"""A metric that the run goes by is one that its evaluations have; the list of names is compared with a real evaluation."""

import pytest
from datasets import Dataset

from covey import GRPOConfig, GRPOTrainer
from covey.errors import ConfigError
from covey.rewards.mixture import as_rewards
from covey.trainer.best_metric import OPEN, check_best_metric, evaluation_names
from tests.tiny import tiny_policy


def by_length(completions, **kwargs):
    return [float(len(c) % 3) for c in completions]


def plain(completions):
    return [float(len(c) % 2) for c in completions]


def settings(**given):
    return GRPOConfig(
        **{"output_dir": "unused", "use_cpu": True, "report_to": "none", "eval_strategy": "epoch", **given}
    )


def check(metric, rewards=(by_length,), sets=((),), adds_metrics=False, **given):
    rewards = as_rewards(list(rewards))
    check_best_metric(settings(metric_for_best_model=metric, **given), rewards, sets, adds_metrics)


def test_the_names_are_those_of_an_evaluation(tmp_path):
    rows = Dataset.from_dict({"prompt": ["ab", "abc"], "task": ["x", "y"]})
    args = settings(
        output_dir=str(tmp_path / "out"), num_generations=2, max_completion_length=4, per_device_train_batch_size=4,
        metric_for_best_model="rewards/plain/mean",
    )  # fmt: skip
    trainer = GRPOTrainer(tiny_policy(tmp_path / "p"), [by_length, plain], args, rows, eval_dataset=rows)
    measured = {name.removeprefix("eval_") for name in trainer.evaluate()}
    measured = {
        name for name in measured if not name.endswith("loss") and not any(part in name for part in OPEN)
    }
    assert measured - {"epoch", "steps_per_second"} <= set(evaluation_names(["by_length", "plain"]))
    assert set(evaluation_names(["by_length", "plain"])) <= measured | {"steps_per_second"}


@pytest.mark.parametrize("metric", evaluation_names(["by_length"]))
def test_every_name_of_an_evaluation_is_taken(metric):
    check(metric)
    check(f"eval_{metric}")
    check(f"eval_b_{metric}", sets={"a": (), "b": ()})


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("eval_rewrad", ["'eval_rewrad'", "Choose eval_reward"]),
        ("rewards/by_length", ["eval_rewards/by_length/mean"]),
        ("rewards/by_lenght/mean", ["eval_rewards/by_length/mean"]),
        ("eval_loss", ["'eval_loss'", "says nothing about learning", "eval_reward"]),
        ("loss", ["'loss'", "says nothing about learning", "eval_reward"]),
        ("completions/mean_len", ["eval_completions/mean_length"]),
    ],
)
@pytest.mark.parametrize("rewards", [[by_length], [by_length, plain]])
def test_a_name_that_no_evaluation_has_is_refused_with_those_that_come_close(metric, words, rewards):
    with pytest.raises(ConfigError) as error:
        check(metric, rewards)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_names_that_something_may_add_pass_where_it_may():
    check("accuracy", adds_metrics=True)
    check("accuracy")  # a reward that takes everything may log it
    check("tasks/sums/reward")
    check("rewards/by_length/pass@4")
    with pytest.raises(ConfigError, match="no evaluation of this run has it"):
        check("accuracy", [plain])
    check("accuracy", [plain], None)  # nothing is evaluated
    check("accuracy", [plain], eval_strategy="no")


@pytest.mark.parametrize("metric", ["reward", "eval_c_reward", "eval_reward", "c_reward"])
def test_with_several_sets_a_name_says_which(metric):
    with pytest.raises(ConfigError, match=r"eval_a_reward or eval_b_reward|eval_b_reward or eval_a_reward"):
        check(metric, sets={"a": (), "b": ()})
    check("a_reward", sets={"a": (), "b": ()})


@pytest.mark.parametrize("schedule", ["greedy", "reduce_lr_on_plateau"])
def test_a_schedule_that_goes_by_a_metric_goes_by_the_reward_upwards(schedule):
    config = settings(lr_scheduler_type=schedule)
    assert (config.metric_for_best_model, config.greater_is_better) == ("reward", True)
    assert config.lr_scheduler_kwargs["mode"] == "max"
    down = settings(
        lr_scheduler_type=schedule, metric_for_best_model="completions/mean_length", greater_is_better=False
    )
    assert down.lr_scheduler_kwargs["mode"] == "min"
    given = settings(lr_scheduler_type=schedule, lr_scheduler_kwargs='{"mode": "min", "patience": 3}')
    assert given.lr_scheduler_kwargs == {"mode": "min", "patience": 3}
    assert settings(save_strategy="best").metric_for_best_model == "reward"
    assert settings().metric_for_best_model is None
