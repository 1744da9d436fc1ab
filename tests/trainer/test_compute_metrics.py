"""`compute_metrics` adds finite numbers under names of its own; anything else it gives is named, and Covey's own are not lost."""

import math

import pytest
import torch

from covey.errors import ConfigError
from tests.tiny import tiny_policy
from tests.trainer.harness import chats, make


def half(completions):
    return [0.5] * len(completions)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compute_metrics")
    return make(tiny_policy(folder / "m"), folder, half, chats(2), eval_dataset=chats(2))


def evaluate(trainer, function):
    trainer.compute_metrics = function
    trainer.state.log_history.clear()
    return trainer.evaluate()


def test_numbers_of_all_kinds_get_the_prefix_once(trainer):
    made = {"accuracy": torch.tensor(0.25), "eval_other": 3, "share": True}
    found = evaluate(trainer, lambda e: made)
    assert found["eval_accuracy"] == 0.25 and found["eval_other"] == 3.0 and found["eval_share"] == 1.0
    assert found["eval_reward"] == 0.5 and found.items() <= trainer.state.log_history[-1].items()
    assert evaluate(trainer, lambda e: {})["eval_reward"] == 0.5


def raises(evaluation):
    return {"accuracy": evaluation.predictions}


WRONG = {
    "none": lambda e: None,
    "a number": lambda e: 3.0,
    "text": lambda e: "good",
    "a list": lambda e: [1.0],
    "nan": lambda e: {"mine": math.nan},
    "infinite": lambda e: {"mine": math.inf},
    "words": lambda e: {"mine": "good"},
    "nothing": lambda e: {"mine": None},
    "several": lambda e: {"mine": [1.0, 2.0]},
    "reward": lambda e: {"reward": 99.0},
    "with the prefix": lambda e: {"eval_reward": 99.0},
    "of a reward": lambda e: {"rewards/half/mean": 99.0},
    "an interval": lambda e: {"reward/low": 99.0},
    "seconds": lambda e: {"runtime": 0.0},
    "raises": raises,
}


@pytest.mark.parametrize("kind", WRONG)
def test_anything_else_is_named_and_the_evaluation_is_logged_without_it(trainer, kind):
    with pytest.raises(ConfigError, match="compute_metrics"):
        evaluate(trainer, WRONG[kind])
    logged = trainer.state.log_history[-1]
    assert logged["eval_reward"] == 0.5 and logged["eval_runtime"] > 0
    assert not any("mine" in name or value != value for name, value in logged.items())


def test_what_it_changes_is_its_own(trainer):
    seen = []

    def spoils(evaluation):
        seen.extend(map(len, evaluation.prompts))
        for prompt in evaluation.prompts:
            prompt.clear()
        return {}

    evaluate(trainer, spoils)
    evaluate(trainer, spoils)
    assert set(seen) == {1} and len(seen) == 2 * 2 * trainer.args.num_generations


def test_what_cannot_be_called_is_found_before_the_run(tmp_path):
    from covey.trainer.compute_metrics import check_compute_metrics

    for wrong in (5, {"accuracy": 1.0}, dict):
        with pytest.raises(ConfigError, match="compute_metrics is"):
            check_compute_metrics(wrong)
