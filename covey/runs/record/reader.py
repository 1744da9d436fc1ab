"""The record of a run, read, also while the run goes on.

    run = covey.runs.open("quickstart-run")
    run.steps()["reward"].plot()
    run.completions(steps=range(90, 101))

Every method reads the files anew and returns a pandas frame. Nothing is written, nothing is locked.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from covey.runs.record import schema, segments
from covey.runs.record.environment import process_start
from covey.runs.record.episodes import read_messages, read_turn_entries
from covey.runs.record.header import read_header
from covey.runs.record.json_text import Json
from covey.runs.record.jsonl import Tail, read_lines
from covey.runs.record.rows import table
from covey.runs.transcript import episode_text
from covey.text.foreign import fit
from covey.types import TRUNCATED
from covey.vision.pictures import IN_RECORD, open_picture

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from PIL.Image import Image

    from covey.runs.report.cell import Cell

State = Literal["running", "finished", "interrupted", "failed", "killed"]

KEY = ("step", "group", "index")
"""Columns that tell a completion from all others of training."""

SILENCE_SECONDS = 3600.0
"""A run on another machine that wrote nothing for so long is taken for killed."""


class Run:
    """The record of one run, as `covey.runs.open` gives it.

    Args:
        path: the output directory of the run, or its record folder.

    Raises:
        FileNotFoundError: there is no record.
        ValueError: it was written by a newer Covey.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = schema.record_folder(path)
        self.header = read_header(self.folder)

    @property
    def name(self) -> str:
        return str(self.header.get("name") or self.folder.resolve().parent.name)

    @property
    def settings(self) -> Json:
        return dict(self.header.get("settings", {}))

    @property
    def environment(self) -> Json:
        return dict(self.header.get("environment", {}))

    @property
    def rewards(self) -> dict[str, float]:
        """Weight by reward name."""
        return dict(self.header.get("rewards", {}))

    @property
    def state(self) -> State:
        """The run goes on, or how it ended: `killed` is one that ended without recording its end."""
        return run_state(self.folder)

    def steps(self) -> pd.DataFrame:
        """Return one row per step, indexed by step: metrics, `seconds/<phase>`, `time`."""
        lines = read_lines(self.folder / schema.STEPS, schema.STEPS)
        rows = ({**_flat(line, "metrics"), **_flat(line, "seconds", "seconds/")} for line in lines)
        return _frame(rows, index="step")

    def statistics(self) -> pd.DataFrame:
        """Return one row per sampled batch, indexed by step: means with standard errors (`covey.runs.record.group_statistics`)."""
        lines = read_lines(self.folder / schema.STATISTICS, schema.STATISTICS)
        return _frame((_flat(line, "numbers") for line in lines), index="step")

    def completions(
        self, steps: Container[int] | None = None, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Return one row per completion; columns as `schema.COMPLETION_FIELDS`.

        Args:
            steps: only these steps, for example `range(10, 20)`.
            columns: only these columns; the others are not read from the disk.
        """
        tables = self.group_tables(None if columns is None else list(dict.fromkeys(["step", *columns])))
        if steps is not None:
            tables = (rows.filter([step in steps for step in rows["step"].to_pylist()]) for rows in tables)
        rows = _concat(list(tables))
        if columns is not None:
            rows = rows.select([c for c in columns if c in rows.column_names])
        return rows.to_pandas()

    def transcript(self, step: int, group: int = 0, index: int = 0) -> str:
        """Return an episode as people read it: who said what, what was called, and, with a bar in front, what came back.

        Of a completion without tools its text. Groups of a step, and completions of a group, count from 0.

        Raises:
            LookupError: there is no such completion, or its texts are not recorded.
        """
        import pyarrow.compute as pc

        for rows in self.group_tables([*KEY, "completion", "messages", "turns"]):
            for name, value in zip(KEY, (step, group, index), strict=True):
                rows = rows.filter(pc.equal(rows[name], value))
            for row in rows.to_pylist():
                if row["completion"] is None:
                    raise LookupError(f"Texts of step {step}, group {group} are not recorded.")
                messages = read_messages(row) or ()
                return episode_text(messages, read_turn_entries(row) or ()) or fit(row["completion"])
        raise LookupError(f"Run {self.name!r} has no completion {index} of group {group} at step {step}.")

    def picture(self, digest: str) -> Image:
        """Return a picture that prompts showed, as it was where it is recorded so (`record_pictures="full"`), else small.

        Args:
            digest: or its beginning, as in `[picture 448×336 ab12]`.

        Raises:
            LookupError: none is recorded whose digest begins so, or several are.
            PictureError: its file is damaged.
        """
        folder = self.folder / schema.PICTURES
        names = sorted(p.name for p in folder.glob("*.webp") if digest and p.name.startswith(digest))
        found = sorted({name.partition(".")[0] for name in names})
        if len(found) != 1:
            what = f"several pictures: {', '.join(found[:3])}" if found else "no picture that is recorded"
            raise LookupError(
                f"{digest!r} is the beginning of {what}. Run {self.name!r} has them in {folder}."
            )
        return open_picture((folder / names[0]).read_bytes(), limits=IN_RECORD)  # .full.webp sorts first

    def groups(self, steps: Container[int] | None = None) -> pd.DataFrame:
        """Return one row per group: its prompt, and mean, spread and signal of its completions.

        `signal` is the mean size of the advantages: what the group can teach. `tokens` are those that the policy wrote.
        """
        shared = ["task", "row", "prompt", "pictures", "prompt_tokens"]
        own = ["total", "advantage", "tokens", "written_tokens", "finish"]
        frame = self.completions(steps, ["step", "group", *shared, *own])
        if frame.empty:
            return frame
        if "written_tokens" in frame:
            frame["tokens"] = frame["written_tokens"].fillna(frame["tokens"])
        frame = frame.assign(signal=frame["advantage"].abs(), truncated=frame["finish"].isin(TRUNCATED))
        by_group = frame.groupby(["step", "group"], sort=False)
        summary = by_group.agg(
            completions=("advantage", "size"), mean=("total", "mean"), best=("total", "max"), std=("total", "std"),
            signal=("signal", "mean"), tokens=("tokens", "mean"), truncated=("truncated", "mean"),
        )  # fmt: skip
        first = by_group[[c for c in shared if c in frame.columns]].first()
        return first.join(summary).reset_index()

    def events(self) -> pd.DataFrame:
        """Return one row per event. `void` marks events of steps that a later resume took out."""
        return _frame(read_events(self.folder))

    def evaluations(self) -> pd.DataFrame:
        """Return one row per evaluation: step, name, metrics. An evaluation that was repeated counts once, the last time."""
        return _frame(
            {**{name: line[name] for name in ("step", "name", "time", "rows")}, **line["metrics"]}
            for line in read_evaluations(self.folder)
        )

    def evaluation_rows(self, name: str, step: int) -> pd.DataFrame:
        """Return the completions of one evaluation, columns as `completions`.

        Raises:
            FileNotFoundError: there is no such evaluation, or it recorded no rows.
        """
        path = self.folder / schema.EVALUATION_ROWS / schema.evaluation_file(name, step)
        if not path.exists():
            known = sorted({(line["name"], line["step"]) for line in read_evaluations(self.folder)})
            raise FileNotFoundError(f"No rows of an evaluation {name!r} at step {step}; there are: {known}.")
        rows = segments.readable_segment(path)
        return (table([]) if rows is None else rows).to_pandas()

    def group_tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the completions as Arrow tables, one per segment that can be read, in the order in which they were recorded."""
        for path in segments.segment_paths(self.folder / schema.GROUPS):
            rows = segments.readable_segment(path, columns)
            if rows is not None:
                yield rows

    def show(self, height: int = 900, max_megabytes: float = 16.0) -> Cell:
        """Return the page of the run, as `covey report` writes it, for a notebook's cell.

        Args:
            height: pixels of the frame.
            max_megabytes: bound of the completions in it: they become a part of the notebook's file.
        """
        from covey.runs.report import write_report
        from covey.runs.report.cell import framed

        with tempfile.TemporaryDirectory() as folder:
            page = write_report([self.folder], Path(folder) / "report.html", max_megabytes)
            return framed(page.read_text(encoding="utf-8"), height)

    def _repr_html_(self) -> str:
        """Return the run's last numbers and the curve of its reward; notebooks ask for it."""
        from covey.runs.report.cell import summary_html

        steps = self.steps()
        rewards = [float(r) for r in steps["reward"].dropna()] if "reward" in steps else []
        last = {} if steps.empty else steps.iloc[-1].to_dict()
        return summary_html(f"{self.name}, {self.state}", rewards, last)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.state}, {str(self.folder)!r})"


def read_events(folder: Path) -> list[schema.Event]:
    """Return the events in order, each with `void`: its step was taken out by a later resume."""
    lines = Tail[schema.EventLine](folder / schema.EVENTS, schema.EVENTS).read()
    events: list[schema.Event] = [{**line, "void": False} for line in lines]
    for position, event in enumerate(events):
        if event["kind"] != "resumed":
            continue
        for earlier in events[:position]:
            earlier["void"] |= (earlier["step"] or 0) > (event["step"] or 0)
    return events


def read_evaluations(folder: Path) -> list[schema.EvaluationLine]:
    """Return the evaluations in order; of repeated ones the last."""
    lines = Tail[schema.EvaluationLine](folder / schema.EVALUATIONS, schema.EVALUATIONS).read()
    return list({(line["name"], line["step"]): line for line in lines}.values())


def run_state(folder: Path) -> State:
    """Return whether a run goes on, how it ended, or that it ended without recording its end."""
    state: State = "killed"
    begun: Json = {}
    for event in read_lines(folder / schema.EVENTS, schema.EVENTS):
        if event["kind"] in ("started", "resumed"):
            state, begun = "running", event["details"]
        elif event["kind"] in schema.END_KINDS:
            state = event["kind"]
    if state == "running" and not _is_alive(begun, folder):
        return "killed"
    return state


def _is_alive(begun: Json, folder: Path) -> bool:
    """Return whether the process that began the run is there; of another machine, whether it wrote lately."""
    if begun.get("host") != platform.node():
        last_write = max(path.stat().st_mtime for path in folder.glob("*.json*"))
        return time.time() - last_write < SILENCE_SECONDS
    pid = begun.get("pid")
    if type(pid) is not int or not 0 < pid < 2**31 or not psutil.pid_exists(pid):
        return False
    return begun.get("process_start") in (None, process_start(pid))


def _flat(line: Json, field: str, prefix: str = "") -> Json:
    shared = {name: line[name] for name in ("step", "time") if name in line}
    return shared | {f"{prefix}{name}": value for name, value in line.get(field, {}).items()}


def _frame(rows: Iterable[Mapping[str, object]], index: str | None = None) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    return frame.set_index(index) if index and len(frame) else frame


def _concat(tables: list[pa.Table]) -> pa.Table:
    """Return one table, columns family by family; a column that only some segments have is null in the others."""
    import pyarrow as pa

    rows = pa.concat_tables(tables or [table([])], promote_options="default")
    families = ["score", "status", "error", "extra"]
    rank = {name: families.index(name.split("/", 1)[0]) if "/" in name else -1 for name in rows.column_names}
    return rows.select(sorted(rows.column_names, key=lambda name: rank[name]))
