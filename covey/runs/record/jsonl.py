"""JSON lines that survive a kill: appended whole, read up to the last complete line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from covey.errors import warn
from covey.runs.record.json_text import Json, encode
from covey.runs.record.schema import has_form

Line = TypeVar("Line", bound=Mapping[str, Any])


class JsonLines:
    """A file of JSON lines, open for appending.

    Each line is one write, so that a killed process leaves at most one torn line, at the end. Opening cuts such a line
    off; so does a write that fails, for example on a full disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open as long as the run
        self.size = _cut_torn_line(path)

    def append(self, record: Mapping[str, object]) -> None:
        """Write one line; OSError leaves the file as it was."""
        line = encode(record)
        try:
            written = self._file.write(line)
            if written != len(line):  # a disk that fills up takes the first part only
                raise OSError(
                    f"{self.path}: {written} of {len(line)} bytes were written. The disk is probably full."
                )
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(line)

    def sync(self) -> None:
        """Return when the lines are on the disk, not only with the operating system."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


_warned: set[str] = set()
"""Files that were warned of; a page asks again and again."""


def warn_damaged(path: Path, error: Exception) -> None:
    """Warn once of a file of a record that cannot be read."""
    if str(path) not in _warned:
        _warned.add(str(path))
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        warn(f"{path} is damaged and left out ({reason}). The rest of the record is shown.")


def read_lines(path: Path, form: str = "") -> list[Json]:
    """Return the complete, undamaged lines of a file, of a form where one is named; none if it does not exist."""
    return Tail[Json](path, form).read()


class Tail(Generic[Line]):
    """The end of a file of JSON lines, from the last look on; lines of one of `schema.FORMS` where `form` names it.

    A file that became shorter (a run was resumed from an earlier step) is read from its start again; `restarts` counts
    how often that happened.
    """

    def __init__(self, path: Path, form: str = "") -> None:
        self.path = path
        self.fits = partial(has_form, form)
        self.offset = 0
        self.restarts = 0
        self.damaged = 0
        self._inode = 0

    def read(self) -> list[Line]:
        """Return new complete lines; those of another form (zeros after a power cut, lines of others) are counted and left out."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size < self.offset or (self._inode and status.st_ino != self._inode):
                    self.offset = 0
                    self.restarts += 1
                self._inode = status.st_ino
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            warn_damaged(self.path, error)
            return []
        end = data.rfind(b"\n") + 1
        self.offset += end
        records: list[Line] = []
        for line in filter(None, data[:end].split(b"\n")):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict) and self.fits(record):
                records.append(cast(Line, record))
            else:
                self.damaged += 1
        return records


def keep_lines(path: Path, keep: Callable[[Json], bool]) -> int:
    """Rewrite a file with the lines that are to be kept, moved into place at once; return how many were taken out."""
    if not path.exists():
        return 0
    lines = read_lines(path)
    kept = [line for line in lines if keep(line)]
    if len(kept) == len(lines):
        return 0
    beside = path.with_suffix(path.suffix + ".tmp")
    beside.write_bytes(b"".join(encode(line) for line in kept))
    os.replace(beside, path)
    return len(lines) - len(kept)


def _cut_torn_line(path: Path) -> int:
    """Cut off a last line without an end; return the size that is left."""
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return end
