"""Going on from a checkpoint: what a record holds of later steps is taken out, so that no step is there twice."""

from __future__ import annotations

import json
from pathlib import Path

from covey.runs.record import schema, segments
from covey.runs.record.jsonl import keep_lines


def drop_after(folder: Path, step: int) -> int:
    """Take out of a record what belongs to later steps, events excepted; return the number of steps taken out.

    Events tell what happened, and stay; readers mark those that a resume made void. May be repeated after a kill.
    """
    steps = keep_lines(
        folder / schema.STEPS, lambda line: type(line.get("step")) is int and line["step"] <= step
    )
    for name in (schema.STATISTICS, schema.EVALUATIONS):
        keep_lines(folder / name, lambda line: type(line.get("step")) is int and line["step"] <= step)
    segments.drop_after(folder / schema.GROUPS, step)
    for path in (folder / schema.EVALUATION_ROWS).glob("*.parquet"):
        if int(path.name.split("-", 1)[0]) > step:
            path.unlink()
    drop_pictures(folder)
    return steps


def drop_pictures(folder: Path) -> None:
    """Take out the pictures that no recorded prompt shows, and halves of one; none where it cannot be known what they show."""
    shown: set[str] = set()
    paths = [
        *segments.segment_paths(folder / schema.GROUPS),
        *(folder / schema.EVALUATION_ROWS).glob("*.parquet"),
    ]
    for path in paths if (folder / schema.PICTURES).is_dir() else ():
        rows = segments.readable_segment(path, list(schema.PICTURE_LEVEL))
        if rows is None:
            return
        texts = rows["pictures"].unique().to_pylist() if "pictures" in rows.column_names else ()
        shown |= {entry["digest"] for text in texts if text for entry in json.loads(text)}
    for path in (folder / schema.PICTURES).glob("*"):
        if path.suffix == ".tmp" or path.name.partition(".")[0] not in shown:
            path.unlink(missing_ok=True)
