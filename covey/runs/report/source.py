"""The completions of a run as blocks, which a page holds, or a server gives: numbers, excerpts, texts and prompts in chunks.

Numbers are kept, and grow by what a running run adds; texts stay on the disk until they are asked for.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from covey.runs.record import schema, segments
from covey.runs.record.episodes import written_lengths
from covey.runs.record.jsonl import read_lines
from covey.runs.record.reader import read_evaluations
from covey.runs.record.rows import table
from covey.runs.report.columns import (
    Column,
    ColumnIndex,
    Entry,
    number_columns,
    pack,
    text_rows,
)
from covey.runs.report.tool_table import ToolTable

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 500
"""Completions per chunk of texts, and prompts per chunk of prompts."""

TRAINING = "training"
"""Name of the source that holds the completions of training; the others are evaluation sets by name."""


def source_names(folder: Path) -> list[str]:
    """Return training, and the evaluation sets of which rows were recorded."""
    names = [
        line["name"] for line in read_lines(folder / schema.EVALUATIONS, schema.EVALUATIONS) if line["rows"]
    ]
    return [TRAINING, *dict.fromkeys(names)]


def source_paths(folder: Path, source: str) -> list[Path]:
    """Return the files that hold the completions of a source, in order of steps."""
    if source == TRAINING:
        return segments.segment_paths(folder / schema.GROUPS)
    steps = sorted(line["step"] for line in read_evaluations(folder) if line["name"] == source)
    paths = [folder / schema.EVALUATION_ROWS / schema.evaluation_file(source, step) for step in steps]
    return [path for path in paths if path.exists()]


class SourceFile(NamedTuple):
    """One file of a source as it was when it was read."""

    path: Path
    size: int
    changed: int
    """Time of the last change, in nanoseconds."""
    rows: int


class CompletionSource:
    """The completions of one source of a run."""

    def __init__(self, folder: Path, name: str, rewards: list[str]) -> None:
        self.folder, self.name, self.rewards = folder, name, rewards
        self._forget()

    def _forget(self) -> None:
        self.index = ColumnIndex()
        self.files: list[SourceFile] = []
        self.tools = ToolTable()
        self.columns: dict[str, Column] = number_columns(table([]), self.rewards, self.index)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def refresh(self) -> None:
        """Read what was added. Sealing a segment changes its file and not its rows; a resume may take rows out."""
        paths = source_paths(self.folder, self.name)
        if len(paths) < len(self.files):
            self._forget()
        for position, path in enumerate(paths):
            status = path.stat()
            mark = (path, status.st_size, status.st_mtime_ns)
            known = self.files[position] if position < len(self.files) else None
            if known is not None and known[:3] == mark:
                continue
            rows = table([]) if (read := segments.readable_segment(path)) is None else read
            count = known.rows if known is not None else 0
            if not self._begins_with(rows, sum(file.rows for file in self.files[:position]), count):
                self._forget()
                return self.refresh()
            added = number_columns(rows.slice(count), self.rewards, self.index)
            self.tools.add(rows.slice(count))
            self.columns = {n: (k, np.concatenate([v, added[n][1]])) for n, (k, v) in self.columns.items()}
            self.files[position : position + 1] = [SourceFile(*mark, rows.num_rows)]

    def _begins_with(self, rows: pa.Table, offset: int, count: int) -> bool:
        """Return whether a file still begins with the `count` rows that were read of it, which stand at `offset`.

        Names, sizes and inodes do not tell: after a resume a file of the same name holds other rows.
        """
        if rows.num_rows < count:
            return False
        first = rows.slice(0, count)
        for name in ("step", "group", "index", "tokens", "logprob"):
            values = self.columns[name][1]
            found = written_lengths(first) if name == "tokens" else first[name].to_numpy(zero_copy_only=False)
            now = found.astype(values.dtype)
            if not np.array_equal(now, values[offset : offset + count], equal_nan=True):
                return False
        return True

    def numbers(self, start: int = 0, **replaced: Column) -> bytes:
        """Return the numbers of the rows from `start` on, packed, with the names that they stand for."""
        columns = (self.columns | replaced).items()
        kept = {name: (kind, values[start:]) for name, (kind, values) in columns}
        return pack(kept, rows=self.rows, tasks=list(self.index.tasks), rewards=self.rewards)

    def texts(self, chunk: int) -> list[Entry]:
        """Return the completions of a chunk, read from the files that hold them."""
        start, stop = chunk * CHUNK, (chunk + 1) * CHUNK
        found: list[Entry] = []
        offset = 0
        for file in self.files:
            low, high = max(start - offset, 0), min(stop - offset, file.rows)
            if low < high:
                found += _texts_of(file)[low:high]
            offset += file.rows
        return found

    def prompts(self, chunk: int) -> list[Entry]:
        """Return a chunk of prompts."""
        return self.index.entries[chunk * CHUNK : (chunk + 1) * CHUNK]


def as_json(value: object) -> bytes:
    """Return a block as JSON; lone surrogates become their escapes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")


@lru_cache(maxsize=8)
def _texts_of(file: SourceFile) -> list[Entry]:
    """Return all texts of a file; one that has changed is another one to the cache."""
    rows = segments.readable_segment(file.path)
    return [] if rows is None else text_rows(rows)
