"""Rows of runs with environments: a prompt where the environment brings it, and names that exist, before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from covey.config import GRPOConfig
from covey.errors import DatasetError
from covey.sample.given_data import Stream, as_dataset, as_eval_dataset, column_names, first_row, is_map_style

OPENING = ({"role": "user", "content": ""},)
"""The prompt of a row that has none: the environment's first observation fills it."""


class PromptedRows:
    """Rows that are read by number, each with the prompt that it lacks."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Mapping[str, object]:
        return _prompted(self.rows[number])


def _prompted(row: Mapping[str, object]) -> dict[str, object]:
    return {"prompt": [dict(message) for message in OPENING], **row}


def with_prompts(dataset: Any) -> Any:
    """Return a dataset whose rows have prompts; those without one get an empty message of the user."""
    if dataset is None or "prompt" in (column_names(dataset, first_row(dataset)) or ["prompt"]):
        return dataset
    if hasattr(dataset, "add_column") and is_map_style(dataset):
        rows: Any = dataset
        return rows.add_column("prompt", [[dict(m) for m in OPENING]] * len(dataset))
    if is_map_style(dataset):
        return PromptedRows(dataset)
    if hasattr(dataset, "map"):
        return dataset.map(_prompted)
    return Stream(lambda: map(_prompted, dataset))


def episode_data(args: GRPOConfig, train_dataset: Any, eval_dataset: Any) -> tuple[Any, Any]:
    """Return the datasets of a run with environments, where prompts and, with `max_steps`, the training rows may be left out.

    Raises:
        DatasetError: something given is no dataset.
    """
    train, evals = as_dataset(train_dataset, "train_dataset"), as_eval_dataset(eval_dataset)
    if train is None and args.max_steps > 0:
        per_step = args.per_device_train_batch_size * args.world_size
        sampled = args.generation_batch_size or per_step * (
            args.steps_per_generation or args.gradient_accumulation_steps
        )
        train = [_prompted({}) for _ in range(max(1, sampled // args.num_generations))]
    if isinstance(evals, dict):
        return with_prompts(train), {name: with_prompts(part) for name, part in evals.items()}
    return with_prompts(train), with_prompts(evals)


def check_names(named: Mapping[str, Any], check: Callable[[Mapping[str, object], int], object]) -> None:
    """Raise where a row names an environment or a tool that is not there, as far as rows can be read by number.

    Args:
        named: datasets by the names that messages call them.
        check: reads what a row names; raises DatasetError.
    """
    for name, dataset in named.items():
        if not is_map_style(dataset):
            continue
        columns = [c for c in ("environment", "tools") if c in (column_names(dataset) or [])]
        rows: Any = dataset
        if columns and hasattr(rows, "select_columns"):
            rows = rows.select_columns([*columns, "prompt"])
        for number in range(len(rows)) if columns else ():
            try:
                check(rows[number], number)
            except DatasetError as error:
                raise DatasetError(f"{name}: {error}") from None
