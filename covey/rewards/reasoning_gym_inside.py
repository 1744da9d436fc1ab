"""Runs in the locked process that scores reasoning-gym answers.

Imported by the zygote, before anything is locked: what scoring reads from files or imports late is read here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset, get_score_answer_fn

LATE_IMPORTS = (
    "countdown",
    "puzzle24",
    "simple_integration",
    "intermediate_integration",
    "polynomial_multiplication",
)
"""Families whose scoring imports parts of sympy when it is first used."""
GRIDS = ("arc_agi", "rearc")
"""Families that compare tuples, which JSON does not have."""

_scorers: dict[str, Callable[..., float]] = {
    name: get_score_answer_fn(name) for name in DATASETS if name != "composite"
}


def score(family: str, answer: str, entry: str) -> float:
    """What reasoning-gym gives an answer to the item that `entry` holds as JSON."""
    item = json.loads(entry)
    if family in GRIDS:
        item["metadata"]["output"] = tuple(map(tuple, item["metadata"]["output"]))
    return float(_scorers[family](answer=answer, entry=item))


def _warm_up() -> None:
    for family in LATE_IMPORTS:
        item: Any = create_dataset(family, size=1, seed=0)[0]
        score(family, str(item["answer"]), json.dumps(item))


_warm_up()
