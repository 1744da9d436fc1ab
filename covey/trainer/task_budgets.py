"""Budgets per task: the tasks of a dataset, held against the settings that name them or need them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError, DatasetError, warn
from covey.sample.given_data import is_map_style
from covey.sample.task_quota import TaskQuota
from covey.text.names import listed
from covey.trainer.data import task_values

if TYPE_CHECKING:
    from covey.config import GRPOConfig

MOST_LISTED = 10
"""Names of tasks that a message lists."""


def make_quota(args: GRPOConfig, kept: Sequence[int] | None, dataset: Any) -> TaskQuota | None:
    """Build what draws rows by the shares of their tasks; None where tasks have none.

    Args:
        kept: numbers of the rows that may be drawn; None for a stream.

    Raises:
        DatasetError: the dataset is read from front to back, a row names no task, or its tasks are not those of `task_shares`.
    """
    shares = args.task_shares
    if not isinstance(shares, dict) or dataset is None:
        return None
    if kept is None:
        raise DatasetError(
            "task_shares draws rows by number, and the training dataset is a stream, which is read from front to back. Give rows with "
            "numbers (a list, datasets.Dataset), or mix the stream yourself."
        )
    rows = rows_by_task(dataset, args.task_column, kept)
    check_names(shares, rows, args.task_column)
    return TaskQuota(args.task_column, rows, shares, args.seed if args.shuffle_dataset else None)


def rows_by_task(dataset: Any, column: str, kept: Sequence[int]) -> dict[str, list[int]]:
    """Return the numbers of the rows of each task; raise a DatasetError where a row names none."""
    values, rows = task_values(dataset, column), dict[str, list[int]]()
    for number in kept:
        if values[number] is None:
            raise DatasetError(
                f"Row {number}: it names no task in the column {column!r}, and task_shares gives each task its share of the "
                "prompts. Name the task of every row; task_column='...' says which column does."
            )
        rows.setdefault(str(values[number]), []).append(number)
    return rows


def check_names(shares: Mapping[str, float], rows: Mapping[str, Sequence[int]], column: str) -> None:
    """Raise a DatasetError where shares are of other tasks than rows."""
    absent, unnamed = sorted(set(shares) - set(rows)), sorted(set(rows) - set(shares))
    if absent:
        raise DatasetError(
            f"task_shares names {quoted(absent)}, and no row that may be drawn is of this task: the column {column!r} has {quoted(sorted(rows))}."
        )
    if unnamed:
        raise DatasetError(
            f"task_shares does not name {quoted(unnamed)}, which the column {column!r} of the training dataset has. Give each task a share; "
            "with 0 its rows are left out."
        )


def warn_of_small_tasks(quota: TaskQuota | None, size: int) -> None:
    """Warn of tasks that have fewer rows than a rollout of `size` prompts takes of them."""
    if quota is None:
        return
    asked = Counter(quota.tasks(0, size))
    small = [name for task, name in enumerate(quota.names) if asked[task] > len(quota.rows[task])]
    if small and len(quota.kept) >= size:  # else all prompts are repeated, and that is said
        warn(
            f"A rollout of {size} prompts takes more of {quoted(small)} than there are rows: their prompts are repeated within it. Lower their "
            "task_shares, give them more rows, or sample fewer prompts at once (per_device_train_batch_size, gradient_accumulation_steps)."
        )


def quoted(names: Sequence[str]) -> str:
    """Return names as messages quote them, the first `MOST_LISTED`."""
    return listed([*map(repr, names)], MOST_LISTED)


def check_tasks(args: GRPOConfig, dataset: Any, first: Any, tasks: Sequence[str]) -> None:
    """Raise where tasks are to weigh the same, and rows do not name them.

    Args:
        first: row of the training dataset.
        tasks: that the training dataset is known to have; none of a stream.

    Raises:
        ConfigError: there are no two tasks.
    """
    if args.task_weights is None or dataset is None:
        return
    named = isinstance(first, Mapping) and first.get(args.task_column) is not None
    if not (len(tasks) > 1 if is_map_style(dataset) else named):  # what else comes of a stream, nobody knows
        raise ConfigError(
            f"task_weights={args.task_weights!r} has no effect: it shares the gradient out among tasks, and the column {args.task_column!r} of "
            f"the training dataset names {quoted(tasks) or 'none'}. Name the task of every row (task_column='...' says which column does), or "
            "leave it out."
        )
