"""The folders of a run's checkpoints: moved into place when they are whole, moved away before they are deleted.

    <run>/checkpoint-<step>             whole, always
    <run>/_saving/checkpoint-<step>     being written; whole as soon as it has a manifest
    <run>/_saving/old-…                 being deleted
    <run>/_checkpoints-<start>/…        those of another run, which began at that time; never deleted

`_saving` and `_checkpoints-…` are names that `transformers.trainer_utils.get_last_checkpoint` does not take for a checkpoint,
and that pushes to a hub leave out. A kill between two moves loses nothing: `tidy` finishes what was begun.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from covey.runs.record import schema
from covey.runs.record.header import dated_name, start_time
from covey.trainer.checkpoint.manifest import damage, read_manifest, sync

STAGING = "_saving"
ASIDE = "_checkpoints"
_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


def checkpoint_name(step: int) -> str:
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def step_of(folder: Path) -> int | None:
    """Return the step in the name of a checkpoint; None for another name."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def checkpoints(run: Path) -> dict[int, Path]:
    """Return the checkpoints of a run by step, damaged ones included, the oldest step first."""
    if not run.is_dir():
        return {}
    found = {step: p for p in run.iterdir() if (step := step_of(p)) is not None and p.is_dir()}
    return dict(sorted(found.items()))


def set_aside(run: Path, resumed: Path | None, step: int) -> Path | None:
    """Move the checkpoints away that are not of the run that starts now: the last one is its own then. Return their folder, if any.

    Args:
        resumed: the checkpoint that the run goes on from; None: it begins anew, and none is its own.
        step: of that checkpoint. Whole ones of later steps belong to what is undone; damaged ones are never gone on from, and stay.
    """
    is_own = resumed is not None and resumed.resolve().parent == run.resolve()
    found = checkpoints(run)
    others = [p for s, p in found.items() if not is_own or (s > step and damage(p) is None)]
    if not others:
        return None
    started = start_time(run / schema.FOLDER) or max(p.stat().st_mtime for p in others)
    # Named as the record of their run is when it is moved aside.
    target = dated_name(run / ASIDE, started)
    target.mkdir()
    for folder in others:
        os.rename(folder, target / folder.name)
    sync(run)
    return target


def publish(staged: Path, target: Path) -> None:
    """Move a whole checkpoint into place; one that is there already gives way."""
    replaced = _moved_away(target) if target.exists() else None
    os.rename(staged, target)
    sync(target.parent)
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def discard(folder: Path) -> None:
    """Delete a checkpoint; a kill meanwhile leaves no half of it under its name."""
    shutil.rmtree(_moved_away(folder), ignore_errors=True)


def rotate(run: Path, limit: int | None, kept: Collection[Path]) -> None:
    """Delete the checkpoints that were saved first until `limit` are left, but for those that are `kept`.

    As in transformers.Trainer: the limit counts those that are kept, and gives way to them. None and 0 delete nothing.
    """
    if not limit or limit < 0:
        return
    kept = {path.resolve() for path in kept}
    others = [p for p in checkpoints(run).values() if p.resolve() not in kept]
    others.sort(key=_saved)
    room = max(limit - len([p for p in kept if p.is_dir()]), 0)
    for folder in others[: len(others) - room]:
        discard(folder)


def tidy(run: Path) -> None:
    """Bring the folders into order that a killed process left behind.

    A checkpoint that was whole and not yet in place is moved there; what else lies in the staging folder is deleted.
    """
    staging = run / STAGING
    for staged in checkpoints(staging).values():
        target = run / staged.name
        if not target.exists() and damage(staged) is None:
            publish(staged, target)
    shutil.rmtree(staging, ignore_errors=True)


def _moved_away(folder: Path) -> Path:
    away = folder.parent / STAGING / f"old-{folder.name}"
    away.parent.mkdir(exist_ok=True)
    shutil.rmtree(away, ignore_errors=True)
    os.rename(folder, away)
    return away


def _saved(folder: Path) -> tuple[float, int]:
    """Return when a checkpoint was saved; one without a manifest comes first."""
    manifest = read_manifest(folder)
    return 0.0 if manifest is None else float(manifest.get("saved", 0.0)), step_of(folder) or 0
