"""Reads the record of a run, also while the run goes on.

    run = covey.runs.open("quickstart-run")
    run.steps()["reward"].plot()
    run.completions(steps=range(90, 101))

Every method reads the files anew and returns a pandas frame. Nothing is written, nothing is locked.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from covey.runs.record import schema, segments
from covey.runs.record.environment import process_start
from covey.runs.record.header import read_header
from covey.runs.record.jsonl import read_lines
from covey.runs.record.resume import evaluation_file
from covey.runs.record.rows import table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

State = Literal["running", "finished", "interrupted", "failed", "killed"]

SILENCE_SECONDS = 3600.0
"""A run on another machine that wrote nothing for so long is taken for killed."""


class Run:
    """The record of one run. Make one with `covey.runs.open`."""

    def __init__(self, path: str | Path) -> None:
        self.folder = schema.record_folder(path)
        self.header = read_header(self.folder)

    @property
    def name(self) -> str:
        return str(self.header.get("name") or self.folder.resolve().parent.name)

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.header.get("settings", {}))

    @property
    def environment(self) -> dict[str, Any]:
        return dict(self.header.get("environment", {}))

    @property
    def rewards(self) -> dict[str, float]:
        """Weight by reward name."""
        return dict(self.header.get("rewards", {}))

    @property
    def state(self) -> State:
        """What became of the run: `killed` is one that ended without saying so."""
        return run_state(self.folder)

    def steps(self) -> pd.DataFrame:
        """One row per step, indexed by step: metrics, `seconds/<phase>`, `time`."""
        lines = read_lines(self.folder / schema.STEPS)
        return _by_step({**_flat(line, "metrics"), **_flat(line, "seconds", "seconds/")} for line in lines)

    def statistics(self) -> pd.DataFrame:
        """One row per sampled batch, indexed by step: means with standard errors (`covey.runs.record.group_statistics`)."""
        return _by_step(_flat(line, "numbers") for line in read_lines(self.folder / schema.STATISTICS))

    def completions(
        self, steps: Container[int] | None = None, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """One row per completion; columns as `schema.COMPLETION_FIELDS`.

        Args:
            steps: only these steps, for example `range(10, 20)`.
            columns: only these columns; the others are not read from the disk.
        """
        rows = _concat([_of_steps(rows, steps) for rows in self.group_tables(_with_step(columns))])
        return (
            rows if columns is None else rows.select([c for c in columns if c in rows.column_names])
        ).to_pandas()

    def groups(self, steps: Container[int] | None = None) -> pd.DataFrame:
        """One row per group: its prompt, and mean, spread and signal of its completions.

        `signal` is the mean size of the advantages: what the group can teach.
        """
        shared = ["task", "row", "prompt", "prompt_tokens"]
        frame = self.completions(steps, ["step", "group", *shared, "total", "advantage", "tokens", "finish"])
        if frame.empty:
            return frame
        frame = frame.assign(signal=frame["advantage"].abs(), truncated=frame["finish"] == "length")
        by_group = frame.groupby(["step", "group"], sort=False)
        summary = by_group.agg(
            completions=("advantage", "size"), mean=("total", "mean"), best=("total", "max"), std=("total", "std"),
            signal=("signal", "mean"), tokens=("tokens", "mean"), truncated=("truncated", "mean"),
        )  # fmt: skip
        first = by_group[[c for c in shared if c in frame.columns]].first()
        return first.join(summary).reset_index()

    def events(self) -> pd.DataFrame:
        """One row per event. `void` marks events of steps that a later resume took out."""
        return _frame(read_events(self.folder))

    def evaluations(self) -> pd.DataFrame:
        """One row per evaluation: step, name, metrics. An evaluation that was repeated counts once, the last time."""
        return _frame(
            {
                "step": line["step"],
                "name": line["name"],
                "time": line["time"],
                "rows": line["rows"],
                **line["metrics"],
            }
            for line in read_evaluations(self.folder)
        )

    def evaluation_rows(self, name: str, step: int) -> pd.DataFrame:
        """The completions of one evaluation, columns as `completions`.

        Raises:
            FileNotFoundError: there is no such evaluation, or it recorded no rows.
        """
        path = self.folder / schema.EVALUATION_ROWS / evaluation_file(name, step)
        if not path.exists():
            known = sorted({(line["name"], line["step"]) for line in read_evaluations(self.folder)})
            raise FileNotFoundError(f"No rows of an evaluation {name!r} at step {step}; there are: {known}.")
        return segments.read_segment(path).to_pandas()

    def group_tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The completions as Arrow tables, one per segment, in the order in which they were recorded."""
        return segments.read_groups(self.folder / schema.GROUPS, columns)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.state}, {str(self.folder)!r})"


def open_run(path: str | Path) -> Run:
    """The record at a path: the output directory of a run, or its record folder.

    Raises:
        FileNotFoundError: there is no record.
        ValueError: it was written by a newer Covey.
    """
    return Run(path)


def read_prompt(prompt: str, chat: bool) -> Any:
    """A recorded prompt as the dataset held it: text, or the messages of a chat."""
    return json.loads(prompt) if chat else prompt


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events in order, each with `void`: its step was taken out by a later resume."""
    events = [{**line, "void": False} for line in read_lines(folder / schema.EVENTS)]
    for position, event in enumerate(events):
        if event["kind"] != "resumed":
            continue
        for earlier in events[:position]:
            earlier["void"] |= earlier["step"] is not None and earlier["step"] > event["step"]
    return events


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations in order; of repeated ones the last."""
    lines = read_lines(folder / schema.EVALUATIONS)
    return list({(line["name"], line["step"]): line for line in lines}.values())


def run_state(folder: Path) -> State:
    """Whether a run goes on, how it ended, or that it ended without a word."""
    state: State = "killed"
    begun: Mapping[str, Any] = {}
    for event in read_lines(folder / schema.EVENTS):
        if event["kind"] in ("started", "resumed"):
            state, begun = "running", event["details"]
        elif event["kind"] in schema.END_KINDS:
            state = event["kind"]
    if state == "running" and not _is_alive(begun, folder):
        return "killed"
    return state


def _is_alive(begun: Mapping[str, Any], folder: Path) -> bool:
    if begun.get("host") != platform.node():
        return time.time() - _last_write(folder) < SILENCE_SECONDS
    pid = begun.get("pid", 0)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return begun.get("process_start") in (None, process_start(pid))


def _last_write(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.glob("*.json*"))


def _flat(line: Mapping[str, Any], field: str, prefix: str = "") -> dict[str, Any]:
    shared = {name: line[name] for name in ("step", "time") if name in line}
    return shared | {f"{prefix}{name}": value for name, value in line.get(field, {}).items()}


def _frame(rows: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows))


def _by_step(rows: Iterator[dict[str, Any]]) -> pd.DataFrame:
    frame = _frame(rows)
    return frame.set_index("step") if len(frame) else frame


def _with_step(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(dict.fromkeys(["step", *columns]))


def _of_steps(rows: pa.Table, steps: Container[int] | None) -> pa.Table:
    if steps is None:
        return rows
    return rows.filter([step in steps for step in rows["step"].to_pylist()])


def _concat(tables: list[pa.Table]) -> pa.Table:
    """One table, columns family by family; a column that only some segments have is null in the others."""
    import pyarrow as pa

    rows = pa.concat_tables(tables or [table([])], promote_options="default")
    families = ["score", "status", "error", "extra"]
    rank = {name: families.index(name.split("/", 1)[0]) if "/" in name else -1 for name in rows.column_names}
    return rows.select(sorted(rows.column_names, key=lambda name: rank[name]))
