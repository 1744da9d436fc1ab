"""The manifest of a checkpoint: what was written, so that a damaged or unfinished one is recognised.

    covey/manifest.json   {"version": 1, "step": 6, "saved": 1767225600.0,
                           "files": {"model.safetensors": {"bytes": 4096, "sha256": "…"}, …},
                           "relaxed": ["async_in_flight"]}

It is written last, when every other file is on the disk: a checkpoint with a manifest is a whole one. The digest covers
the first and the last 4 MiB of a file, which is all of a small one; a larger one is also known by its size. A flipped bit
in the middle of large weights is not seen: to read them all would take as long as to write them. `relaxed` is there only
where the run cannot be resumed to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NotRequired, TypedDict, cast

VERSION = 1
MANIFEST = Path("covey") / "manifest.json"
DIGESTED_BYTES = 4 << 20
"""Bytes at either end of a file that its digest covers."""


class FileFacts(TypedDict):
    """Size and digest of a file."""

    bytes: int
    sha256: str


class Manifest(TypedDict):
    """Version, step, time and files of a checkpoint."""

    version: int
    step: int
    saved: float
    files: dict[str, FileFacts]
    relaxed: NotRequired[list[str]]
    """Settings under which the run cannot be repeated, nor resumed to the bit."""


def write_manifest(folder: Path, step: int, relaxed: Sequence[str] = ()) -> None:
    """Bring every file of a checkpoint to the disk, then write what there is.

    Args:
        relaxed: settings under which the run cannot be resumed to the bit.
    """
    files = {name: facts(folder / name) for name in sorted(file_names(folder))}
    sync_tree(folder)
    manifest: Manifest = {"version": VERSION, "step": step, "saved": time.time(), "files": files}
    if relaxed:
        manifest["relaxed"] = list(relaxed)
    path = folder / MANIFEST
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    sync(path)
    sync(path.parent)
    sync(folder)


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a checkpoint; None where there is none, or one that can be read and vouches for files in it."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("version", VERSION) not in range(1, VERSION + 1):
        return None
    files = manifest.get("files")
    is_one = isinstance(files, dict) and files and all(_vouches(name, entry) for name, entry in files.items())
    return cast(Manifest, manifest) if is_one else None


def _vouches(name: str, entry: object) -> bool:
    """Return whether an entry names a file inside its checkpoint, with size and digest: a damaged manifest is believed nothing."""
    path = PurePosixPath(name)
    is_inside = not path.is_absolute() and ".." not in path.parts and "\0" not in name and "\\" not in name
    return (
        is_inside
        and isinstance(entry, dict)
        and type(entry.get("bytes")) is int
        and isinstance(entry.get("sha256"), str)
    )


def damage(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, for people; None for a whole one."""
    manifest = read_manifest(folder)
    if manifest is None:
        return f"{MANIFEST} is missing or cannot be read: the checkpoint was not finished, or another program wrote it"
    found = [fault for name, written in manifest["files"].items() if (fault := _fault(folder, name, written))]
    if not found:
        return None
    more = f", and {len(found) - 3} more" if len(found) > 3 else ""
    return "; ".join(found[:3]) + more


def _fault(folder: Path, name: str, written: FileFacts) -> str | None:
    try:
        size = (folder / name).stat().st_size
    except OSError:
        return f"{name} is missing"
    if size != written["bytes"]:
        return f"{name} has {size} bytes, and {written['bytes']} were written"
    if digest(folder / name) != written["sha256"]:
        return f"{name} does not hold what was written to it"
    return None


def facts(path: Path) -> FileFacts:
    """Return what the manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": digest(path)}


def digest(path: Path) -> str:
    """SHA-256 of the first and the last `DIGESTED_BYTES` of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        found.update(file.read(DIGESTED_BYTES))
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - DIGESTED_BYTES))
        found.update(file.read(DIGESTED_BYTES))
    return found.hexdigest()


def file_names(folder: Path) -> Iterator[str]:
    """Files of a checkpoint relative to it, those of Covey's manifest excepted."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and name != MANIFEST:
            yield name.as_posix()


def sync_tree(folder: Path) -> None:
    """Return when every file and folder below is on the disk."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Return when a file, or the list of names of a folder, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no descriptors of folders, and writes their names with the files
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
