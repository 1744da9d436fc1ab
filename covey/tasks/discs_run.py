"""Rows and settings of `covey quickstart --vision`: a policy that can say two letters, and sees badly. Values only, no torch.

Dataset.from_list(train_rows(seed))
GRPOConfig(output_dir=..., **settings(seed))
GRPOTrainer(str(assets.DISCS_POLICY), [discs_reward, discs_solved], ...)
"""

from __future__ import annotations

from random import Random

from covey.tasks.discs import disc_rows
from covey.tasks.quickstart_run import settings as quickstart_settings

PROMPTS_PER_STEP = 12
GROUP_SIZE = 8
STEPS = 180
HELD_OUT = 200
HELD_OUT_SEED = 0


def train_rows(seed: int = 0, steps: int = STEPS, is_shuffled: bool = False) -> list[dict[str, object]]:
    """Draw as many rows of the train split as `steps` optimizer steps take.

    Args:
        is_shuffled: pictures change places at random: the control, in which there is nothing to see.
    """
    rows = disc_rows(PROMPTS_PER_STEP * steps, seed=seed)
    if not is_shuffled:
        return rows
    pictures = Random(f"shuffled {seed}").sample([row["image"] for row in rows], len(rows))
    return [{**row, "image": picture} for row, picture in zip(rows, pictures, strict=True)]


def held_out_rows() -> dict[str, list[dict[str, object]]]:
    """Draw the pictures that accuracy is measured on, by task; the same for every seed of the run."""
    return {"discs": disc_rows(HELD_OUT, seed=HELD_OUT_SEED, split="held_out")}


def settings(seed: int = 0, steps: int = STEPS) -> dict[str, object]:
    """Return arguments of GRPOConfig, without `output_dir`."""
    return {
        **quickstart_settings(seed, steps),
        "learning_rate": 1e-3,
        "num_generations": GROUP_SIZE,
        "per_device_train_batch_size": PROMPTS_PER_STEP * GROUP_SIZE,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 4,
    }
