"""The choice of the checkpoint that a run goes on from: the one that was asked for, or the last whole one."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

from covey.errors import CheckpointError
from covey.trainer.checkpoint.faults import first_fault
from covey.trainer.checkpoint.folders import checkpoint_name, checkpoints
from covey.trainer.checkpoint.manifest import MANIFEST, damage, read_manifest
from covey.types import Gather

LAST = ("true", "last")
AUTO = "auto"


class NoCheckpointError(CheckpointError, ValueError):
    """There is nothing to go on from; a ValueError as in transformers.Trainer."""


@dataclass(frozen=True)
class Choice:
    """The checkpoint to go on from, and what has to be said about it."""

    folder: str | None = None
    """None: start at the beginning."""
    remarks: tuple[str, ...] = ()


def choose(asked: str | bool | None, run: Path, is_first_of_node: bool, gather: Gather) -> Choice:
    """Return the checkpoint that `resume_from_checkpoint` means. Collective.

    Args:
        asked: None or False: start at the beginning. True, 'true' or 'last': the last whole checkpoint of the run. 'auto':
            the same, or start where there is none at all. Anything else: that folder.
        run: the run's output directory.
        is_first_of_node: whether this process looks at the files for the others of its node.
        gather: returns every process's value.

    Raises:
        CheckpointError: the checkpoint that was asked for is damaged or not there, or none is whole.
    """
    if asked is None or asked is False or str(asked).lower() in ("", "false", "none"):
        return Choice()
    word = str(asked).lower()
    if asked is True or word in LAST or word == AUTO:
        return _last_whole(run, word == AUTO, is_first_of_node, gather)
    return _given(Path(str(asked)), is_first_of_node, gather)


def _last_whole(run: Path, may_start: bool, is_first_of_node: bool, gather: Gather) -> Choice:
    seen = {step: damage(folder) for step, folder in checkpoints(run).items()} if is_first_of_node else None
    nodes = [node for node in gather(seen) if node is not None]
    steps = sorted({step for node in nodes for step in node}, reverse=True)
    if not steps:
        if may_start:
            return Choice()
        raise NoCheckpointError(
            f"There is no checkpoint in {run} to go on from. Start without resuming, or resume "
            "with 'auto', which starts at the beginning where there is none."
        )
    damaged: list[str] = []
    for step in steps:
        folder = run / checkpoint_name(step)
        fault = first_fault(node.get(step, "it is missing on one of the machines") for node in nodes)
        if fault is None:
            instead = [f"Going on from {folder} instead."] if damaged else []
            return Choice(str(folder), (*damaged, *instead, *_without_optimizer(folder)))
        damaged.append(f"{folder} is damaged: {fault}.")
    raise CheckpointError(
        f"No checkpoint in {run} is whole. {' '.join(damaged)} To go on with one of them nonetheless, delete its "
        f"{MANIFEST} and give its path; what is missing will not come back."
    )


def _given(folder: Path, is_first_of_node: bool, gather: Gather) -> Choice:
    has_manifest = read_manifest(folder) is not None
    seen = (damage(folder) if has_manifest else _visible_damage(folder)) if is_first_of_node else None
    fault = first_fault(gather(seen))
    if fault is not None:
        whole = [p for p in checkpoints(folder.parent).values() if p != folder and damage(p) is None]
        others = f"There is no whole checkpoint beside it in {folder.parent}."
        if whole:
            others = f"The last whole one beside it is {whole[-1]}; resume_from_checkpoint=True takes it."
        raise CheckpointError(f"{folder} is damaged: {fault}. {others}")
    if has_manifest:
        return Choice(str(folder), tuple(_without_optimizer(folder)))
    return Choice(str(folder), (f"{folder} has no {MANIFEST}: whether it is whole is not known.",))


def _without_optimizer(folder: Path) -> list[str]:
    manifest = read_manifest(folder)
    files = {} if manifest is None else manifest["files"]
    if not files or any("optim" in name for name in files):
        return []
    return [
        f"{folder} holds no state of the optimizer (save_only_model=True): its moments start at zero, and the run is not "
        "the one that was stopped."
    ]


def _visible_damage(folder: Path) -> str | None:
    """Return what can be seen to be wrong with a checkpoint that no manifest vouches for."""
    if not folder.is_dir():
        return "there is no such folder"
    try:
        json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"trainer_state.json cannot be read ({type(error).__name__}: {error})"
    for path in sorted(folder.rglob("*.safetensors")):
        if not _is_whole_safetensors(path):
            return f"{path.relative_to(folder)} is cut off"
    for path in sorted((*folder.rglob("*.pt"), *folder.rglob("*.pth"))):
        if not zipfile.is_zipfile(path):
            return f"{path.relative_to(folder)} is cut off"
    return None


def _is_whole_safetensors(path: Path) -> bool:
    """Return whether a file is as long as its header says (8 bytes with the header's length, the header, the tensors)."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        if length > size - 8:
            return False
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return bool(8 + length + max(ends, default=0) == size)
