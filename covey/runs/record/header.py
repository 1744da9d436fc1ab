"""The head of a record, `run.json`: written whole, moved into place."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from covey.runs.record import schema
from covey.runs.record.json_text import Json, encode
from covey.runs.record.jsonl import read_lines


def write_header(folder: Path, header: Mapping[str, object]) -> None:
    """Write `run.json` beside and move it into place."""
    beside = folder / (schema.RUN + ".tmp")
    beside.write_bytes(encode(header))
    os.replace(beside, folder / schema.RUN)


def read_header(folder: Path) -> Json:
    """Return the contents of `run.json`; an empty dict where it is damaged, and without a field that is.

    Raises:
        ValueError: it was written by a newer Covey.
    """
    for line in read_lines(folder / schema.RUN):
        kinds = schema.HEADER_FORM
        header = {n: v for n, v in line.items() if n not in kinds or isinstance(v, kinds[n])}
        header["plan"] = [
            pair for pair in header.get("plan") or () if isinstance(pair, list) and len(pair) == 2
        ]
        if (header.get("version") or 0) > schema.VERSION:
            raise ValueError(
                f"{folder / schema.RUN} has version {header['version']} of the record; this Covey reads up to "
                f"{schema.VERSION}. Read it with the Covey that wrote it, or a newer one."
            )
        return header
    return {}


def settings_changes(before: Json, after: Json) -> dict[str, list[object]]:
    """Return the settings that differ between two headers: name → value before, value after."""
    old, new = before.get("settings", {}), after.get("settings", {})
    return {n: [old.get(n), new.get(n)] for n in sorted({*old, *new}) if old.get(n) != new.get(n)}


def move_aside(folder: Path) -> Path | None:
    """Keep the record of an earlier run beside the new one, under the time at which it started."""
    started = start_time(folder)
    if started is None:
        return None
    target = dated_name(folder, started)
    shutil.move(folder, target)
    return target


def start_time(folder: Path) -> float | None:
    """Return when the run of a record started, in seconds since the epoch; None where there is no record."""
    if not schema.is_record(folder):
        return None
    return float(read_header(folder).get("started") or min(p.stat().st_mtime for p in folder.glob("*.json*")))


def dated_name(path: Path, seconds: float) -> Path:
    """Return the path with a local time behind its name, `record-20260131-235959`; with a number too where that is taken."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
    wanted = target = path.with_name(f"{path.name}-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = wanted.with_name(f"{wanted.name}-{number}")
    return target
