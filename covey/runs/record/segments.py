"""The groups of a run on disk: an open segment of JSON lines, and sealed segments of Parquet.

    groups/000000.parquet  groups/000001.parquet  groups/000002.jsonl   ← open

A segment is sealed when it is full: the Parquet file is written beside, moved into place, then the lines are deleted. A
kill between two of these leaves both or a `.tmp`; the Parquet file, once in place, is the whole segment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from covey.runs.record.json_text import Json
from covey.runs.record.jsonl import JsonLines, read_lines, warn_damaged
from covey.runs.record.rows import column_type, sound_table, table
from covey.runs.record.schema import EPISODE_LEVEL, PICTURE_LEVEL

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT_BYTES = 8 << 20
"""Size at which the open segment is sealed. Bounds the time that sealing takes, and the memory."""


class GroupFiles:
    """The segments of a running run: groups are appended to the open one, which is sealed when it is full."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
        self._open = JsonLines(self._next_path())

    def append(self, line: Json) -> None:
        self._open.append(line)

    def seal_if_full(self) -> None:
        """Turn the open segment into Parquet if it is full, and open the next one.

        Called between steps, so that a step is never split over two segments. If it fails (a full disk), the lines stay
        as they are, readable, and the next segment is begun all the same.
        """
        if self._open.size < max(1, self.segment_bytes):
            return
        full, self._open = self._open, JsonLines(self._next_path())
        full.close()
        seal(full.path)

    def sync(self) -> None:
        self._open.sync()

    def close(self) -> None:
        """Seal what is left, so that a finished run is Parquet alone."""
        self._open.close()
        if self._open.size:
            seal(self._open.path)
        else:
            self._open.path.unlink(missing_ok=True)

    def _next_path(self) -> Path:
        numbers = [int(p.stem) for p in segment_paths(self.folder)]
        return self.folder / f"{max(numbers, default=-1) + 1:06d}.jsonl"


def seal(path: Path) -> Path:
    """Write a segment of lines as Parquet, move it into place, delete the lines."""
    sealed = path.with_suffix(".parquet")
    write_parquet(sound_table(read_lines(path)), sealed)
    path.unlink()
    return sealed


def write_parquet(rows: pa.Table, path: Path) -> None:
    """Write beside, flush to the disk, move into place; the folder is made where it is missing."""
    import pyarrow.parquet as pq

    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".tmp")
    dictionary = [
        n
        for n in rows.column_names
        if n in ("task", "prompt", "columns", "pictures", "finish") or n.startswith("status/")
    ]
    with open(beside, "wb") as file:  # an open file: Arrow takes no path that is not UTF-8
        pq.write_table(rows, file, compression="zstd", use_dictionary=dictionary)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def tidy(folder: Path) -> None:
    """Bring a folder into order that a killed process left behind; sealed segments win over their lines."""
    for leftover in folder.glob("*.tmp"):
        leftover.unlink(missing_ok=True)
    for lines in folder.glob("*.jsonl"):
        if lines.with_suffix(".parquet").exists() or not lines.stat().st_size:
            lines.unlink(missing_ok=True)
        else:
            seal(lines)


def segment_paths(folder: Path) -> list[Path]:
    """Return one path per segment in order: the Parquet file where there is one, else the lines."""
    by_number: dict[str, Path] = {}
    for path in sorted(folder.glob("*.jsonl")) + sorted(folder.glob("*.parquet")):
        if path.stem.isdigit():
            by_number[path.stem] = path
    return [by_number[stem] for stem in sorted(by_number)]


def read_segment(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return one segment as a table; `columns` that it does not have are left out.

    A segment that is sealed between listing and reading is read from its Parquet file.
    """
    import pyarrow.parquet as pq

    sealed = path.with_suffix(".parquet")
    if path.suffix == ".jsonl" and path.exists():
        lines = read_lines(path)
        if lines or not sealed.exists():
            rows = sound_table(lines)
            return rows if columns is None else rows.select([c for c in columns if c in rows.column_names])
    with open(sealed, "rb") as opened, pq.ParquetFile(opened) as file:
        kept = None if columns is None else [c for c in columns if c in file.schema_arrow.names]
        return file.read(columns=kept)


def readable_segment(path: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Return one segment as a table; None, and a warning, where it is damaged: that hides nothing but itself.

    Raises:
        FileNotFoundError: it is gone.
    """
    try:
        rows = read_segment(path, columns)
        wanted = [n for n in table([]).column_names if columns is None or n in columns]
        wanted += [n for n in (*PICTURE_LEVEL, *EPISODE_LEVEL) if n in rows.column_names]
        others = [n for n in wanted if rows.schema.field(n).type != column_type(n)]
        if others:
            raise ValueError(f"its columns {', '.join(others)} are of other types")
        return rows
    except FileNotFoundError:
        raise
    except Exception as error:  # the boundary: whatever a damaged file makes pyarrow or us say
        warn_damaged(path, error)
        return None


def drop_after(folder: Path, step: int) -> None:
    """Take out the groups of later steps."""
    import pyarrow.compute as pc

    tidy(folder)
    for path in segment_paths(folder):
        segment = readable_segment(path, ["step"])
        if segment is None:
            continue
        steps = segment["step"]
        if not len(steps) or pc.max(steps).as_py() <= step:
            continue
        if pc.min(steps).as_py() > step:
            path.unlink()
        else:
            rows = read_segment(path)
            write_parquet(rows.filter(pc.less_equal(rows["step"], step)), path)
