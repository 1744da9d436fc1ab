"""Completions as tables in Weights & Biases, Trackio, MLflow and TensorBoard, with pictures beside, and as text in the terminal.

The loggers are those of `report_to`, or callbacks that were given: transformers' own, which have opened a run already. A
logger is known by the name of its class, so that none has to be installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.runs.record.json_text import plain
from covey.runs.transcript import episode_text
from covey.text.foreign import as_markdown, clean
from covey.vision.marks import mark, word, worded

if TYPE_CHECKING:
    from PIL.Image import Image

    from covey.types import Picture

Row = Mapping[str, object]
"""One completion, as in completions.jsonl."""
Cell = str | int | float | None
Cells = list[list[Cell]]
Shown = Sequence[tuple["Picture", "Image"]]
"""Pictures, each with its pixels, small."""
NAME, PICTURES = "completions", "pictures"
CELL = 2000
"""Characters of a text in TensorBoard, which draws all of a table at once."""


def send(callbacks: Iterable[object], rows: Sequence[Row], step: int, pictures: Shown = ()) -> None:
    """Give every logger among these callbacks a table of completions, and the pictures that its prompts name by their digests."""
    if not rows:
        return
    rows = [_readable(row) for row in rows]
    # Nothing hidden: readers trust what they see, and no logger takes half a character.
    columns = [clean(column) for column in rows[0]]
    cells = [[_visible_cell(value) for value in row.values()] for row in rows]
    for callback in callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in SENDERS:
                SENDERS[kind.__name__](callback, columns, cells, step, pictures)
                break


def printed(rows: Iterable[Row], step: int) -> Iterator[str]:
    """Yield completions for the terminal, a line each; control characters are shown and not obeyed."""
    for row in rows:
        ended = f"ended by {row['finish']}" + _counted(row)
        yield f"Step {step}, reward {row['reward']}, advantage {row['advantage']:+.2f}, {ended}"
        for name in ("prompt", "completion"):
            lines = str(_visible_cell(_readable(row)[name])).split("\n")
            yield f"  {name}: " + "\n    ".join(lines)


def _counted(row: Row) -> str:
    """Return how many turns and calls an episode has; nothing for a plain completion."""
    if "messages" not in row or not isinstance(turns := row.get("turns"), list):
        return ""
    calls = [call["status"] for turn in turns for call in turn["calls"] if call["status"] != "not_run"]
    failed = sum(status != "ok" for status in calls)
    return f", turns {len(turns)}, calls {len(calls)}" + (f", failed {failed}" if failed else "")


def _readable(row: Row) -> Row:
    """Return a row with pictures in words, and of an episode the transcript for the text, of which nobody knows who wrote what."""
    if isinstance(row.get("prompt"), list):
        row = {**row, "prompt": worded(row["prompt"])}  # type: ignore[arg-type]
    if "messages" not in row or not isinstance(turns := row.get("turns"), list):
        return row
    kept = {name: value for name, value in row.items() if name not in ("messages", "turns")}
    messages = row["messages"]
    return {**kept, "completion": episode_text(messages, turns)} if isinstance(messages, list) else kept


def _to_wandb(callback: object, columns: list[str], cells: Cells, step: int, shown: Shown) -> None:
    import wandb

    # Values beside None in a column make one type with it only where mixed types are allowed.
    table = wandb.Table(columns=columns, data=cells, allow_mixed_types=True)
    images = [wandb.Image(image, caption=word(mark(picture))) for picture, image in shown]
    wandb.log({NAME: table, **({PICTURES: images} if images else {}), "train/global_step": step})


def _to_trackio(callback: object, columns: list[str], cells: Cells, step: int, shown: Shown) -> None:
    import pandas
    import trackio

    table = trackio.Table(dataframe=pandas.DataFrame(cells, columns=columns))
    images = {_tag(p): trackio.Image(image, caption=word(mark(p))) for p, image in shown}
    trackio.log({NAME: table, **images, "train/global_step": step})


def _to_mlflow(callback: object, columns: list[str], cells: Cells, step: int, shown: Shown) -> None:
    import mlflow

    # One file per log: MLflow appends to a table by reading and writing all of it.
    data = {name: [row[i] for row in cells] for i, name in enumerate(columns)}
    mlflow.log_table(data, artifact_file=f"{NAME}/step_{step:08d}.json")
    for picture, image in shown:
        mlflow.log_image(image, artifact_file=f"{_tag(picture)}.png")


def _to_tensorboard(callback: object, columns: list[str], cells: Cells, step: int, shown: Shown) -> None:
    writer: Any = getattr(callback, "tb_writer", None)
    if writer is None:
        return
    lines: list[Sequence[Cell]] = [columns, *cells]
    texts = [
        [f"{v:.4g}" if isinstance(v, float) else "" if v is None else str(v)[:CELL] for v in line]
        for line in lines
    ]
    lines_of_table = ["| " + " | ".join(map(as_markdown, line)) + " |" for line in texts]
    lines_of_table.insert(1, "| --- " * len(columns) + "|")
    writer.add_text(NAME, "\n".join(lines_of_table), step)
    for picture, image in shown:
        writer.add_image(_tag(picture), np.asarray(image), step, dataformats="HWC")
    writer.flush()


def _tag(picture: Picture) -> str:
    """Return the name of a logged picture."""
    return f"{PICTURES}/{picture.digest[:16]}"


SENDERS: dict[str, Callable[[Any, list[str], Cells, int, Shown], None]] = {
    "WandbCallback": _to_wandb,
    "TrackioCallback": _to_trackio,
    "MLflowCallback": _to_mlflow,
    "TensorBoardCallback": _to_tensorboard,
}


def _visible_cell(value: object) -> Cell:
    """Return what a logger's table shows of a value: numbers as they are, texts cleaned, the rest (messages, lists) as JSON."""
    if value is None or isinstance(value, int | float):
        return value
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=plain))
