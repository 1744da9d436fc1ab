"""Everything of a run that a page needs at once: small, as JSON. Completions come apart (`source`)."""

from __future__ import annotations

from pathlib import Path

from covey.runs.hints.watch import begin_watch, replay, stride_for
from covey.runs.record import schema
from covey.runs.record.header import read_header
from covey.runs.record.json_text import Json, finite
from covey.runs.record.jsonl import Tail
from covey.runs.record.reader import read_events, run_state
from covey.runs.report.curves import curves
from covey.runs.report.evaluations import Evaluations
from covey.runs.report.failures import failures
from covey.runs.report.source import CHUNK, CompletionSource, source_names

MAX_EVENTS = 2000


class RunSummary:
    """Header, state, curves, evaluations, hints, failures and events of one run.

    May be asked again while the run goes on: only what was added is read and judged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: list[CompletionSource] = []
        self._evaluations = Evaluations(folder)
        self._data: Json = {}
        self._version: object = None
        self._begin()

    def data(self) -> Json:
        """Return the summary of now, made anew only when the record has changed; reads the sources too."""
        version = record_version(self.folder)
        if version != self._version:
            self._data = self._read_all()
            self._version = version
        return self._data

    def _read_all(self) -> Json:
        self._read()
        header, events = read_header(self.folder), read_events(self.folder)
        rewards = list(header.get("rewards", {}))
        known = {source.name: source for source in self.sources}
        self.sources = [
            known.get(name) or CompletionSource(self.folder, name, rewards)
            for name in source_names(self.folder)
        ]
        for source in self.sources:
            source.refresh()
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
            # Starts and resumes, with what a resume changed.
            "sessions": [
                {k: e[k] for k in ("time", "kind", "step")} | {"changed": e["details"].get("changed", {})}
                for e in events
                if e["kind"] in ("started", "resumed")
            ],
            "sources": [
                {
                    "name": source.name, "rows": source.rows, "leftOut": 0, "chunk": CHUNK,
                    "tools": finite(source.tools.data()),
                }
                for source in self.sources
            ],
        }  # fmt: skip

    def _begin(self) -> None:
        self._steps = Tail[schema.StepLine](self.folder / schema.STEPS, schema.STEPS)
        self._statistics = Tail[schema.StatisticsLine](self.folder / schema.STATISTICS, schema.STATISTICS)
        self._evaluated = Tail[schema.EvaluationLine](self.folder / schema.EVALUATIONS, schema.EVALUATIONS)
        self._lines: list[schema.StepLine] = []
        self._numbers: dict[int, dict[str, float]] = {}
        self._watch = begin_watch(self.folder)

    def _read(self) -> None:
        steps, statistics, evaluations = self._steps.read(), self._statistics.read(), self._evaluated.read()
        if any(tail.restarts for tail in (self._steps, self._statistics, self._evaluated)):
            self._begin()  # a resume took steps out
            return self._read()
        if not self._lines:
            self._watch = begin_watch(self.folder, len(steps))
        self._lines += steps
        self._numbers |= {line["step"]: line["numbers"] for line in statistics}
        replay(self._watch, steps, self._numbers, evaluations, stride_for(len(steps)))


def record_version(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of a record's files: it differs whenever the record has changed."""
    found = []
    for path in (folder / schema.RUN, *folder.glob("*.jsonl"), *(folder / schema.GROUPS).glob("*")):
        try:
            status = path.stat()
        except FileNotFoundError:  # sealed or cut back between listing and looking
            continue
        found.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))
