"""The completions of one source of a run: training, or an evaluation set over time."""

from __future__ import annotations

from pathlib import Path

from covey.runs.record import schema, segments
from covey.runs.record.reader import read_evaluations
from covey.runs.record.resume import evaluation_file
from covey.runs.report.summary import TRAINING


def source_paths(folder: Path, source: str) -> list[Path]:
    """The files that hold the completions of a source, in order of steps."""
    if source == TRAINING:
        return segments.segment_paths(folder / schema.GROUPS)
    lines = sorted(
        (line for line in read_evaluations(folder) if line["name"] == source), key=lambda line: line["step"]
    )
    paths = [folder / schema.EVALUATION_ROWS / evaluation_file(source, line["step"]) for line in lines]
    return [path for path in paths if path.exists()]
