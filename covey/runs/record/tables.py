"""Completions as tables in Weights & Biases, Trackio, MLflow and TensorBoard, and as text in the terminal.

The loggers are those of `report_to`, or callbacks that were given: transformers' own, which have opened a run already. A
logger is known by the name of its class, so that none has to be installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from covey.text.foreign import visible

Row = Mapping[str, object]
"""One completion, as in completions.jsonl."""
Cell = str | int | float | None
NAME = "completions"
CELL = 2000
"""Characters of a text in TensorBoard, which draws all of a table at once."""

_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", "|": "&#124;", "\r": "", "\n": "<br>"})


def send(callbacks: Iterable[object], rows: Sequence[Row], step: int) -> None:
    """Give every logger among these callbacks a table of completions."""
    if not rows:
        return
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    for callback in callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in SENDERS:
                SENDERS[kind.__name__](callback, columns, cells, step)
                break


def printed(rows: Iterable[Row], step: int) -> Iterator[str]:
    """Yield completions for the terminal, a line each; control characters are shown and not obeyed."""
    for row in rows:
        yield f"Step {step}, reward {row['reward']}, advantage {row['advantage']:+.2f}, ended by {row['finish']}"
        for name in ("prompt", "completion"):
            lines = str(_cell(row[name])).splitlines() or [""]
            yield f"  {name}: " + "\n    ".join(visible(line) for line in lines)


def _to_wandb(callback: object, columns: list[str], cells: list[list[Cell]], step: int) -> None:
    import wandb

    # Values beside None in a column make one type with it only where mixed types are allowed.
    table = wandb.Table(columns=columns, data=cells, allow_mixed_types=True)
    wandb.log({NAME: table, "train/global_step": step})


def _to_trackio(callback: object, columns: list[str], cells: list[list[Cell]], step: int) -> None:
    import pandas
    import trackio

    table = trackio.Table(dataframe=pandas.DataFrame(cells, columns=columns))
    trackio.log({NAME: table, "train/global_step": step})


def _to_mlflow(callback: object, columns: list[str], cells: list[list[Cell]], step: int) -> None:
    import mlflow

    # One file per log: MLflow appends to a table by reading and writing all of it.
    data = {name: [row[i] for row in cells] for i, name in enumerate(columns)}
    mlflow.log_table(data, artifact_file=f"{NAME}/step_{step:08d}.json")


def _to_tensorboard(callback: Any, columns: list[str], cells: list[list[Cell]], step: int) -> None:
    if callback.tb_writer is None:
        return
    lines: list[Sequence[Cell]] = [columns, ["---"] * len(columns), *cells]
    texts = [
        [f"{v:.4g}" if isinstance(v, float) else "" if v is None else str(v)[:CELL] for v in line]
        for line in lines
    ]
    escaped = ["| " + " | ".join(text.translate(_MARKDOWN) for text in line) + " |" for line in texts]
    callback.tb_writer.add_text(NAME, "\n".join(escaped), step)
    callback.tb_writer.flush()


SENDERS: dict[str, Callable[[Any, list[str], list[list[Cell]], int], None]] = {
    "WandbCallback": _to_wandb,
    "TrackioCallback": _to_trackio,
    "MLflowCallback": _to_mlflow,
    "TensorBoardCallback": _to_tensorboard,
}


def _cell(value: object) -> Cell:
    """Return numbers and texts as they are, everything else (messages, lists) as JSON."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
