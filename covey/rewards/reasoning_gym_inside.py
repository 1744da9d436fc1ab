"""Scoring of reasoning-gym answers, for the locked process that it runs in.

Imported by the zygote, before anything is locked: what scoring reads from files or imports late is read here.
"""

from __future__ import annotations

import json
from collections.abc import Callable

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
    """Return reasoning-gym's own score of an answer to the item that `entry` holds as JSON."""
    item = json.loads(entry)
    if family in GRIDS:
        item["metadata"]["output"] = tuple(map(tuple, item["metadata"]["output"]))
    return float(_scorers[family](answer=answer, entry=item))


for name in LATE_IMPORTS:
    item = create_dataset(name, size=1, seed=0)[0]
    score(name, str(item["answer"]), json.dumps(item))
