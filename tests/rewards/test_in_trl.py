"""Every bundled reward, and a mixture of them, inside TRL's trainer."""

import json
import math

import pytest

trl = pytest.importorskip("trl", reason="needs trl")

from datasets import Dataset  # noqa: E402

import covey.rewards as bundled  # noqa: E402
from covey.rewards.neural.judge import Judge  # noqa: E402
from tests.tiny import tiny_policy, tiny_reward_model  # noqa: E402

ROW = {
    "target": "15",
    "solution": "15",
    "nums": [4, 8, 2, 1],
    "tests": json.dumps([{"name": "f", "args": [1], "expected": 1}]),
    "entry_point": "f",
    "limit": 20,
    "task": "math",
    "program_tests": json.dumps([{"input": "1", "output": "1"}]),
    "asserts": ["assert f(1) == 1"],
    "rg_family": None,
    "rg_entry": None,
}
"""One row that every reward finds something in."""


def rewards(folder):
    class Client:
        async def complete(self, messages):
            number = messages[0]["content"].partition('"id": "')[2].partition('"')[0]
            return json.dumps({"id": number, "ok": "yes"})

    accuracy = bundled.SameAnswer()
    return [
        bundled.format_reward_func,
        bundled.simple_math_reward_func,
        bundled.math_reward_func,
        bundled.code_reward_func,
        bundled.Countdown("all"),
        bundled.ThinkFormat(),
        bundled.Tagged("answer"),
        bundled.BoxedFormat(),
        bundled.JsonFormat(),
        bundled.ExactMatch(),
        bundled.NumberMatch(),
        accuracy,
        bundled.MultipleChoice(),
        bundled.CosineLength(accuracy, 100),
        bundled.SoftOverlong(16, 8),
        bundled.LengthBudget("limit"),
        bundled.Repetition(),
        bundled.accuracy_reward,
        bundled.reasoning_accuracy_reward,
        bundled.think_format_reward,
        bundled.get_soft_overlong_punishment(16, 8),
        bundled.get_cosine_scaled_reward(16),
        bundled.get_repetition_penalty_reward(),
        bundled.CallTests(),
        bundled.StdioTests(tests="program_tests"),
        bundled.AssertTests(tests="asserts"),
        bundled.ReasoningGym(),
        bundled.load_reward_model(tiny_reward_model(folder)),
        Judge(Client(), {"criteria": [{"name": "ok", "question": "Ok?"}]}),
        bundled.Mixture(
            bundled.reward(bundled.Countdown(), tasks="math", requires="think_format"),
            bundled.ThinkFormat(),
            bundled.reward(by_length, where="thread", timeout=300.0),
            coroutine,
            name="mixed",
        ),
    ]


def by_length(completions, **_):
    return [float(len(bundled.text_of(c))) for c in completions]


async def coroutine(completions, **_):
    return [0.25] * len(completions)


def is_homeless(name):
    """Names that are no reward: nouns, tools, and what this test makes another way."""
    return name in {
        *(
            "as_rewards",
            "check_rewards",
            "CheckReport",
            "Cosine",
            "Failure",
            "get_cosine_scaled_reward",
            "get_repetition_penalty_reward",
            "get_soft_overlong_punishment",
            "Linear",
            "load_reward_model",
            "OpenAIClient",
        ),
        *(
            "Reward",
            "reward",
            "RewardBatch",
            "RewardModel",
            "RewardOptions",
            "RewardTable",
            "Rubric",
            "Sandbox",
            "Steps",
        ),
        "text_of",
    }


def test_every_bundled_reward_is_tried(tmp_path):
    tried = {type(r).__name__ for r in rewards(tmp_path)} | {
        getattr(r, "__name__", "") for r in rewards(tmp_path)
    }
    assert {name for name in bundled.__all__ if not is_homeless(name)} <= tried


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_one_run_with_all_of_them(tmp_path, chat):
    prompts = [f"say {letter}" for letter in "abcdefgh"]
    if chat:
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    dataset = Dataset.from_list([{"prompt": prompt, **ROW} for prompt in prompts])
    functions = rewards(tmp_path / "rm")
    trainer = trl.GRPOTrainer(
        model=tiny_policy(tmp_path / "policy"),
        reward_funcs=functions,
        train_dataset=dataset,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=12,
            report_to="none",
            use_cpu=True,
            bf16=False,
            logging_steps=1,
        ),
    )
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert math.isfinite(log["reward"])
    for function in functions:
        name = f"rewards/{function.__name__}/mean"
        assert name in log, (name, sorted(log))
    assert log["rewards/judge/mean"] == 1.0 and log["rewards/mixed/mean"] > 0.25
