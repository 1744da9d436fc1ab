"""Going on from a checkpoint: what a record holds of later steps is taken out, so that no step is there twice."""

from __future__ import annotations

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
    return steps


def evaluation_file(name: str, step: int) -> str:
    """Return the file name of the rows of an evaluation; letters, digits, dots, dashes and underscores of the name stay."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else f"%{ord(c):x}" for c in name)
    return f"{step:06d}-{safe}.parquet"
