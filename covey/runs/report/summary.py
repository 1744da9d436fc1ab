"""Everything of a run that a page needs at once: small, as JSON. Completions come apart (`columns`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from covey.runs.hints.watch import begin_watch, replay, stride_for
from covey.runs.record import schema
from covey.runs.record.header import read_header
from covey.runs.record.jsonl import Tail, finite, read_lines
from covey.runs.record.reader import read_events, run_state
from covey.runs.report.curves import curves
from covey.runs.report.evaluations import Evaluations
from covey.runs.report.failures import failures

MAX_EVENTS = 2000
TRAINING = "training"
"""Name of the source that holds the completions of training; the others are evaluation sets by name."""


class RunSummary:
    """Header, state, curves, evaluations, hints, failures and events of one run.

    May be asked again while the run goes on: only what was added is read and judged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._evaluations = Evaluations(folder)
        self._begin()

    def data(self) -> dict[str, Any]:
        """The summary of now."""
        self._read()
        header, events = read_header(self.folder), read_events(self.folder)
        shown = [e for e in events if e["kind"] != "reward_failure"]
        return {
            "name": header.get("name") or self.folder.resolve().parent.name,
            "state": run_state(self.folder),
            "header": finite(header),
            "started": header.get("started"),
            "curves": curves(self._lines, self._numbers),
            "evaluations": self._evaluations.all(),
            "hints": [h.as_dict() | {"holds": self._watch.holds(h)} for h in self._watch.hints],
            "failures": failures(events),
            "events": [
                {k: e[k] for k in ("time", "step", "kind", "message", "void")} for e in shown[-MAX_EVENTS:]
            ],
            "sessions": _sessions(events),
        }

    def _begin(self) -> None:
        names = (schema.STEPS, schema.STATISTICS, schema.EVALUATIONS)
        self._tails = {name: Tail(self.folder / name) for name in names}
        self._lines: list[dict[str, Any]] = []
        self._numbers: dict[int, dict[str, float]] = {}
        self._watch = begin_watch(self.folder)

    def _read(self) -> None:
        new = {name: tail.read() for name, tail in self._tails.items()}
        if any(tail.restarts for tail in self._tails.values()):  # a resume took steps out
            self._begin()
            new = {name: tail.read() for name, tail in self._tails.items()}
        steps = new[schema.STEPS]
        if not self._lines:
            self._watch = begin_watch(self.folder, len(steps))
        self._lines += steps
        self._numbers |= {line["step"]: line["numbers"] for line in new[schema.STATISTICS]}
        replay(self._watch, steps, self._numbers, new[schema.EVALUATIONS], stride_for(len(steps)))


def version(folder: Path) -> tuple[Any, ...]:
    """Changes whenever a record has changed: names, sizes and times of its files."""
    paths = [folder / schema.RUN, *folder.glob("*.jsonl"), *(folder / schema.GROUPS).glob("*")]
    return tuple(sorted((p.name, s.st_size, s.st_mtime_ns) for p in paths if (s := _status(p)) is not None))


def sources(folder: Path) -> list[str]:
    """Training, and the evaluation sets of which rows were recorded."""
    names = [line["name"] for line in read_lines(folder / schema.EVALUATIONS) if line["rows"]]
    return [TRAINING, *dict.fromkeys(names)]


def _status(path: Path) -> Any:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _sessions(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Starts and resumes, with what a resume changed."""
    kinds = ("started", "resumed")
    return [
        {"time": e["time"], "kind": e["kind"], "step": e["step"], "changed": e["details"].get("changed", {})}
        for e in events
        if e["kind"] in kinds
    ]
