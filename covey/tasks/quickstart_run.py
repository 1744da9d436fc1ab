"""Rows, rewards and settings of the quickstart: training of the bundled policy on all three tasks. Values only, no torch.

Dataset.from_list(train_rows(seed))                         all three tasks
GRPOConfig(output_dir=..., **settings(seed))
[*RULES, text_reward(load_reward_model(str(assets.REWARD_MODEL)))]
held_out_rows()                                             by task, for the accuracy before and after
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from covey.rewards import reward
from covey.tasks.code import code_reward
from covey.tasks.countdown import countdown_reward
from covey.tasks.mixed import mixed_rows

if TYPE_CHECKING:
    from covey.rewards.contract import Reward

RULES: list[Callable[..., list[float | None]]] = [countdown_reward, code_reward]
"""The rewards that are rules; the third is `text_reward`."""

PROMPTS_PER_STEP = {"countdown": 6, "code": 4, "text": 2}
"""Prompts per optimizer step on average; the rows are shuffled."""

GROUP_SIZE = 8
STEPS = 110
HELD_OUT = {"countdown": 200, "code": 200}
HELD_OUT_SEED = 0


def train_rows(seed: int = 0, steps: int = STEPS) -> list[dict[str, object]]:
    """Draw as many rows of the train split as `steps` optimizer steps take."""
    return mixed_rows({task: count * steps for task, count in PROMPTS_PER_STEP.items()}, seed=seed)


def held_out_rows() -> dict[str, list[dict[str, object]]]:
    """Draw the puzzles that accuracy is measured on, by task; the same for every seed of the run."""
    return {
        task: mixed_rows({task: count}, seed=HELD_OUT_SEED, split="held_out")
        for task, count in HELD_OUT.items()
    }


def text_reward(reward_model: Callable[..., object]) -> Reward:
    """Return the reward of the third task: the bundled reward model, on the rows of that task alone."""
    return reward(reward_model, name="text_reward", tasks="text")


def settings(seed: int = 0, steps: int = STEPS) -> dict[str, object]:
    """Return arguments of GRPOConfig, without `output_dir`."""
    return {
        "seed": seed,
        "max_steps": steps,
        "learning_rate": 3e-4,
        "lr_scheduler_type": "linear",
        "warmup_steps": 5,
        "num_generations": GROUP_SIZE,
        "num_generations_eval": 1,
        "per_device_train_batch_size": sum(PROMPTS_PER_STEP.values()) * GROUP_SIZE // 3,
        "gradient_accumulation_steps": 3,
        "per_device_eval_batch_size": 100,
        "max_completion_length": 112,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "logging_steps": 1,
        "log_completions": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
