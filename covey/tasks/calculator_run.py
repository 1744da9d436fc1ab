"""Rows and settings of `covey quickstart --tools`: a policy that can call a calculator, and mostly guesses. Values only, no torch.

Dataset.from_list(train_rows(seed))
GRPOConfig(output_dir=..., **settings(seed))
GRPOTrainer(str(assets.CALCULATOR_POLICY), calculator_reward, ..., tools=[calculator])
"""

from __future__ import annotations

from covey.tasks.calculator import calculator_rows
from covey.tasks.quickstart_run import settings as quickstart_settings

PROMPTS_PER_STEP = 8
GROUP_SIZE = 8
STEPS = 60
HELD_OUT = 200
HELD_OUT_SEED = 0


def train_rows(seed: int = 0, steps: int = STEPS) -> list[dict[str, object]]:
    """Draw as many rows of the train split as `steps` optimizer steps take."""
    return calculator_rows(PROMPTS_PER_STEP * steps, seed=seed)


def held_out_rows() -> dict[str, list[dict[str, object]]]:
    """Draw the puzzles that accuracy is measured on, by task; the same for every seed of the run."""
    return {"calculator": calculator_rows(HELD_OUT, seed=HELD_OUT_SEED, split="held_out")}


def settings(seed: int = 0, steps: int = STEPS) -> dict[str, object]:
    """Return arguments of GRPOConfig, without `output_dir`."""
    return {
        **quickstart_settings(seed, steps),
        "learning_rate": 2e-4,
        "num_generations": GROUP_SIZE,
        "per_device_train_batch_size": PROMPTS_PER_STEP * GROUP_SIZE,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 64,
    }
