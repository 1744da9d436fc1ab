"""What a server keeps of a run that goes on: numbers in columns, grown by what was added; texts stay on the disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from covey.runs.record import segments
from covey.runs.record.header import read_header
from covey.runs.report.columns import (
    CHUNK,
    Column,
    Index,
    concatenate,
    number_columns,
    pack,
    prompt_rows,
    text_rows,
)
from covey.runs.report.summary import RunSummary, sources, version
from covey.runs.report.texts import source_paths


class ServedRun:
    """A run as the live page sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: list[ServedSource] = []
        self._version: tuple[Any, ...] = ()
        self._summary: dict[str, Any] = {}
        self._running = RunSummary(folder)
        self._refresh_sources()

    def version(self) -> tuple[Any, ...]:
        return version(self.folder)

    def summary(self) -> dict[str, Any]:
        """The summary with the facts of the sources; made anew only when the record has changed."""
        now = self.version()
        if now != self._version:
            self._refresh_sources()
            self._summary = self._running.data()
            self._version = now
        return self._summary | {"sources": [source.facts() for source in self.sources]}

    def _refresh_sources(self) -> None:
        rewards = list(read_header(self.folder).get("rewards", {}))
        known = {source.name: source for source in self.sources}
        self.sources = [
            known.get(name) or ServedSource(self.folder, name, Index(rewards))
            for name in sources(self.folder)
        ]
        for source in self.sources:
            source.refresh()


@dataclass
class _Part:
    """One file of a source: how many rows it had when it was read, and what it was called then."""

    path: Path
    rows: int
    mark: tuple[int, int]
    """Size and inode: a file that only grew keeps its inode; one that was rewritten does not."""


@dataclass
class ServedSource:
    """The completions of one source of a running run."""

    folder: Path
    name: str
    index: Index
    columns: dict[str, Column] = field(default_factory=dict)
    prompt_entries: list[dict[str, Any]] = field(default_factory=list)
    _parts: list[_Part] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self._parts)

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "rows": self.rows, "leftOut": 0, "chunk": CHUNK}

    def refresh(self) -> None:
        """Read what was added. Sealing a segment changes its file and not its rows; a resume may take rows out."""
        paths = source_paths(self.folder, self.name)
        if not self._still_holds(paths):
            self._forget()
        for position, path in enumerate(paths):
            if position < len(self._parts) and not self._may_have_grown(position, path):
                self._parts[position].path = path
                continue
            self._read(position, path)

    def numbers(self, start: int) -> bytes:
        """Numbers of the rows from `start` on, packed."""
        part = {name: (kind, values[start:]) for name, (kind, values) in self.columns.items()}
        return pack(part, rows=self.rows, tasks=list(self.index.tasks), rewards=self.index.rewards)

    def texts(self, chunk: int) -> list[dict[str, Any]]:
        """The completions of a chunk, read from the files that hold them."""
        start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, self.rows)
        found: list[dict[str, Any]] = []
        offset = 0
        for part in self._parts:
            low, high = max(start, offset) - offset, min(stop, offset + part.rows) - offset
            if low < high:
                found += _texts_of(str(part.path), part.mark, tuple(self.index.rewards))[low:high]
            offset += part.rows
        return found

    def prompts(self, chunk: int) -> list[dict[str, Any]]:
        return self.prompt_entries[chunk * CHUNK : (chunk + 1) * CHUNK]

    def _still_holds(self, paths: list[Path]) -> bool:
        """Whether what was read is still the beginning of what is there."""
        if len(paths) < len(self._parts):
            return False
        for part, path in zip(self._parts, paths, strict=False):
            if path.stem != part.path.stem:
                return False
            is_same_file = path == part.path
            if is_same_file and path.stat().st_ino != part.mark[1]:
                return False
            if not is_same_file and segments.read_segment(path, ["step"]).num_rows < part.rows:
                return False
        return True

    def _may_have_grown(self, position: int, path: Path) -> bool:
        part = self._parts[position]
        if path == part.path:
            return path.stat().st_size != part.mark[0]
        return segments.read_segment(path, ["step"]).num_rows > part.rows

    def _read(self, position: int, path: Path) -> None:
        status = path.stat()
        table = segments.read_segment(path)
        known = self._parts[position].rows if position < len(self._parts) else 0
        added = table.slice(known)
        prompts = len(self.index.prompts)
        columns = number_columns(added, self.index)
        self.prompt_entries += prompt_rows(added, self.index, prompts)
        self.columns = concatenate([self.columns, columns]) if self.columns else columns
        part = _Part(path, table.num_rows, (status.st_size, status.st_ino))
        self._parts[position : position + 1] = [part]

    def _forget(self) -> None:
        self.index = Index(self.index.rewards)
        self.columns, self.prompt_entries, self._parts = {}, [], []


@lru_cache(maxsize=8)
def _texts_of(path: str, mark: tuple[int, int], rewards: tuple[str, ...]) -> list[dict[str, Any]]:
    """All texts of a file; `mark` makes a file that has changed another one to the cache."""
    return text_rows(segments.read_segment(Path(path)), rewards)
