"""Rows of all three tasks in one dataset: every row has every column, None where it does not apply."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from covey.errors import DatasetError
from covey.tasks.code import code_rows
from covey.tasks.countdown import countdown_rows
from covey.tasks.friendly_text import text_rows
from covey.tasks.split import Split

GENERATORS = {"countdown": countdown_rows, "code": code_rows, "text": text_rows}

COLUMNS = ("prompt", "task", "nums", "target", "tests", "topics")


def mixed_rows(
    counts: Mapping[str, int], *, seed: int = 0, split: Split = "train"
) -> list[dict[str, object]]:
    """Draw `counts[task]` rows of each task at its default level, shuffled by `seed`, all with the same columns.

    Raises:
        DatasetError: an unknown task, or more rows than a task has.
    """
    unknown = sorted(set(counts) - set(GENERATORS))
    if unknown:
        raise DatasetError(f"No task {unknown[0]!r}. Expected some of {', '.join(map(repr, GENERATORS))}.")
    rows = [row for task, count in counts.items() for row in GENERATORS[task](count, seed=seed, split=split)]
    Random(f"mixture {seed}").shuffle(rows)
    return [{name: row.get(name) for name in COLUMNS} for row in rows]
