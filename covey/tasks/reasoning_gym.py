"""Rows from reasoning-gym: a hundred families of generated puzzles. Needs the package reasoning-gym.

Their answers are scored by `covey.rewards.ReasoningGym`, in the sandbox: reasoning-gym's own scoring evaluates them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from covey.errors import DatasetError

INSTRUCTION = (
    "Think first, between <think> and </think>. Then give your final answer, and nothing else, between <answer> and "
    "</answer>."
)


def reasoning_gym_rows(
    families: Sequence[str] | Mapping[str, float],
    size: int,
    *,
    seed: int = 0,
    instruction: str = INSTRUCTION,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """`size` rows, drawn from the families.

    Args:
        families: names, or names with weights; a row's family is drawn by weight.
        seed: the same seed gives the same rows.
        instruction: said after each question.
        options: settings of families, by name, as `reasoning_gym.create_dataset` takes them.

    Returns:
        Rows with the chat `prompt`, `task` ("rg/<family>"), `rg_family`, and `rg_entry`, the item as JSON.

    Raises:
        DatasetError: reasoning-gym is not installed, or has no such family.
    """
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise DatasetError(
            "These rows need the package reasoning-gym: pip install 'covey[reasoning-gym]'."
        ) from error
    weights = dict(families) if isinstance(families, Mapping) else dict.fromkeys(families, 1.0)
    unknown = sorted(set(weights) - set(DATASETS))
    if unknown or not weights:
        raise DatasetError(
            f"reasoning-gym has no family {', '.join(map(repr, unknown)) or 'without a name'}."
        )
    drawn = random.Random(seed).choices(list(weights), list(weights.values()), k=size)
    counts = {family: drawn.count(family) for family in weights if family in drawn}
    items = {
        family: iter(create_dataset(family, size=count, seed=seed, **(options or {}).get(family, {})))
        for family, count in counts.items()
    }
    return [_row(family, next(items[family]), instruction) for family in drawn]


def _row(family: str, item: Mapping[str, Any], instruction: str) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": f"{item['question']}\n\n{instruction}"}],
        "task": f"rg/{family}",
        "rg_family": family,
        "rg_entry": json.dumps(item, default=str),
    }
