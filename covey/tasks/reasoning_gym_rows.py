"""Rows from reasoning-gym: a hundred families of generated puzzles. Needs the package reasoning-gym.

Their answers are scored by `covey.rewards.ReasoningGym`, in the sandbox: reasoning-gym's own scoring evaluates them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

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
    options: Mapping[str, Mapping[str, object]] | None = None,
) -> list[dict[str, object]]:
    """Draw `size` rows from the families.

    Args:
        families: names, or names with weights; a row's family is drawn by weight.
        seed: the same seed gives the same rows.
        instruction: appended to each question.
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
    rows: list[dict[str, object]] = []
    for family in drawn:
        item = next(items[family])
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"{item['question']}\n\n{instruction}"}],
                "task": f"rg/{family}",
                "rg_family": family,
                "rg_entry": json.dumps(item, default=str),
            }
        )
    return rows
