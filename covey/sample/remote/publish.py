"""Weights → a folder that servers read: written beside, checked, and put in its place when it is whole.

    ROOT/_running                          locked while the run goes on: the folder of a run that is dead is cleaned by the next one
    ROOT/17/model-00001-of-00003.safetensors
           model.safetensors.index.json    which file has which tensor
           config.json                     of the policy; not in a folder that holds a part of it
           manifest.json                   size and SHA-256 of each file, and what the folder is
    ROOT/18-adapter/adapter_model.safetensors, adapter_config.json

Each version has a folder of its own, as servers remember paths. Only one process writes; all of them gather, and all of them raise.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from covey.errors import EngineError
from covey.models.inspect import innermost
from covey.sample.remote.owned_folder import TMPFS, OwnedFolder
from covey.text.foreign import fit

if TYPE_CHECKING:
    from covey.sample.remote.effective import SavedForm, WeightBlock

SHARD = 2 << 30
"""Bytes of a file of weights at most, but for a tensor that is larger."""

MANIFEST = "manifest.json"
WRITING = ".writing"
PREFIX = "covey-weights-"


class WeightFolders:
    """The folders of a run's weights, and their place. Used by the process that writes.

    Args:
        given: the folder that the user named; None: memory of this machine where the weights fit in twice and the servers are here,
            else `output_dir`/weights.
        output_dir: the run's.
        run: name of the run.
    """

    def __init__(self, given: Path | None, output_dir: Path, run: str) -> None:
        self.given, self.output_dir, self.run = given, output_dir, run
        self.root: Path | None = None
        self._own: OwnedFolder | None = None
        self._number = 0

    def place(self, size: int, are_here: bool, kind: str = "") -> Path:
        """Return the path of a new folder that is not there yet.

        Args:
            size: bytes that will be written.
            are_here: whether all servers are on this machine.
            kind: goes into its name.

        Raises:
            OSError: nothing can be written there.
        """
        if self.root is None:
            fits = self.given is None and are_here and os.access(TMPFS, os.W_OK)
            fits = fits and shutil.disk_usage(TMPFS).free > 2 * size + (1 << 28)
            above = self.given or (TMPFS if fits else self.output_dir / "weights")
            above.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.run)[:40]
            self._own = OwnedFolder(above, PREFIX, f"{name}-")
            self.root = self._own.path
            os.chmod(self.root, 0o755)  # a server may be another user's
        self._number += 1
        free = shutil.disk_usage(self.root).free
        if free < size:
            raise OSError(f"{self.root} has {free:,} bytes left, and {size:,} are to be written")
        return self.root / (f"{self._number}-{kind}" if kind else str(self._number))

    def close(self) -> None:
        """Delete all folders of this run."""
        if self._own is None:
            return
        self._own.close()
        if self._own.path.parent == self.output_dir / "weights":
            with suppress(OSError):  # another run's are in it
                self._own.path.parent.rmdir()
        self.root = self._own = None


def write_weights(
    form: SavedForm,
    blocks: Sequence[WeightBlock],
    folder: Path | None,
    agree: Callable[[str | None], None],
    seconds: dict[str, float] | None = None,
) -> None:
    """Write blocks of a policy into a folder. Collective: every process gathers, the one with a folder writes.

    Args:
        form: the policy as files have it.
        folder: the new folder; None: this process does not write.
        agree: takes this process's fault or None, and raises in all processes where one has any.
        seconds: gets the time of gathering and of writing.

    Raises:
        EngineError: nothing is there then: it could not be written, or is not what the policy has.
    """
    clock = {"gather": 0.0, "write": 0.0} if seconds is None else seconds
    table = {n: t for b in blocks for n, t in b.table.items()}
    fault = writer = None
    with ThreadPoolExecutor(1) as hashing:
        if folder is not None:
            writer = _Writer(folder.with_name(folder.name + WRITING), table, hashing)
        for block in blocks:
            started = time.monotonic()
            tensors: dict[str, Tensor] = {}
            try:
                tensors = form.read(block, keeps=writer is not None and fault is None)
            except (EngineError, RuntimeError) as error:  # the others are gathering, so this one goes on
                fault = fault or f"The weights of {block.key or 'the policy'} cannot be read: {error}"
            between = time.monotonic()
            if writer is not None and fault is None:
                fault = _fault_of(partial(writer.add, tensors), folder)
            clock["gather"] += between - started
            clock["write"] += time.monotonic() - between
        started = time.monotonic()
        if writer is not None and folder is not None:
            is_whole = len(blocks) == len(form.blocks)
            config = form.causal.config if is_whole else None
            fault = fault or _fault_of(lambda: writer.finish(folder, config, form.dtype), folder)
            if fault:
                shutil.rmtree(writer.folder, ignore_errors=True)
    clock["write"] += time.monotonic() - started
    agree(fault)


def _fault_of(work: Callable[[], None], folder: Path | None) -> str | None:
    """Do a piece of work, and return what went wrong with the disk or the files; None: nothing."""
    try:
        work()
    except EngineError as error:
        return str(error)
    except Exception as error:  # safetensors has errors of its own for what the disk refuses
        return (
            f"Weights cannot be written to {folder}: {fit(str(error), 500)}. Free some space, or set weights_folder to a place that has "
            "it and that the servers can read."
        )
    return None


class _Writer:
    """Writes tensors that come in the order of a table, a file at a time; the digests are made beside."""

    def __init__(self, folder: Path, table: Mapping[str, Tensor], hashing: ThreadPoolExecutor) -> None:
        self.folder, self.table, self.hashing = folder, table, hashing
        self.files: dict[str, list[str]] = {}
        self._pending: dict[str, Tensor] = {}
        self._digests: dict[str, Future[str]] = {}
        sizes = {n: prod(t.shape) * t.element_size() for n, t in table.items()}
        shards: list[list[str]] = [[]]
        filled = 0
        for name, size in sizes.items():
            if shards[-1] and filled + size > SHARD:
                shards.append([])
                filled = 0
            shards[-1].append(name)
            filled += size
        many = len(shards) > 1
        for i, names in enumerate(shards, 1):
            self.files[f"model-{i:05d}-of-{len(shards):05d}.safetensors" if many else "model.safetensors"] = (
                names
            )

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors of a block, and write the files that are complete."""
        from safetensors.torch import save_file

        self._pending |= tensors
        for file, names in self.files.items():
            if file in self._digests or not all(name in self._pending for name in names):
                continue
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / file
            save_file({n: self._pending.pop(n) for n in names}, path, metadata={"format": "pt"})
            self._digests[file] = self.hashing.submit(digest, path)

    def finish(self, folder: Path, config: Any, dtype: torch.dtype) -> None:
        """Write what else belongs into the folder, compare it with the table, and put it in its place."""
        weight_map = {name: file for file, names in self.files.items() for name in names}
        total = sum(prod(t.shape) * t.element_size() for t in self.table.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _dump(self.folder / "model.safetensors.index.json", index)
        if config is not None:
            saved = copy.deepcopy(config)
            saved.dtype = str(dtype).removeprefix("torch.")
            saved.save_pretrained(self.folder)
        seal(
            self.folder,
            {file: digest.result() for file, digest in self._digests.items()},
            is_part=config is None,
        )
        compare(self.folder, self.table)
        os.rename(self.folder, folder)


def seal(folder: Path, digests: Mapping[str, str], **facts: object) -> None:
    """Write the manifest of a folder: size and digest of each of its files."""
    files = {
        p.name: {"bytes": p.stat().st_size, "sha256": digests.get(p.name) or digest(p)}
        for p in sorted(folder.iterdir())
    }
    _dump(folder / MANIFEST, {"files": files, **facts})
    for path in folder.iterdir():
        os.chmod(path, 0o644)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def compare(folder: Path, table: Mapping[str, Tensor]) -> None:
    """Compare the names, shapes and dtypes in a folder with those of the policy.

    Raises:
        EngineError: they differ. No server has seen the folder then.
    """
    from safetensors import safe_open

    found: dict[str, tuple[list[int], torch.dtype]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                found[name] = part.get_shape(), _DTYPES[part.get_dtype()]
    expected = {name: (list(tensor.shape), tensor.dtype) for name, tensor in table.items()}
    if wrong := next((n for n in [*expected, *found] if expected.get(n) != found.get(n)), None):
        raise EngineError(
            f"The folder of weights has {wrong} as {found.get(wrong)}, and the policy has it as {expected.get(wrong)}. It was not "
            "sent to any server. This is a fault of the writing: report it with the name of the model."
        )


_DTYPES = {
    **{f"F{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{"BF16": torch.bfloat16, "U8": torch.uint8, "BOOL": torch.bool},
}
"""Names of dtypes in safetensors files."""


def write_adapter(
    policy: nn.Module,
    folder: Path | None,
    dtype: torch.dtype,
    agree: Callable[[str | None], None],
    seconds: dict[str, float] | None = None,
) -> None:
    """Write the LoRA adapter of a policy as peft does. Collective.

    The scaling of each layer is in its matrix B, and all ranks are filled up to the largest one with zeros, as servers know one rank
    and one scaling for all.

    Args:
        policy: see `adapter_of`.
        folder: the new folder; None: this process does not write.
        dtype: of the tensors in the file.
        agree: takes this process's fault or None, and raises in all processes where one has any.
        seconds: gets the time of gathering and of writing.
    """
    from covey.sample.native.merged_weights import whole
    from covey.sample.remote.travel import adapter_of

    clock = {"gather": 0.0, "write": 0.0} if seconds is None else seconds
    started = time.monotonic()
    active, layers = adapter_of(policy)
    rank = max(layer.r[active] for _, layer in layers)
    tensors: dict[str, Tensor] = {}
    for path, layer in layers:
        down, up = whole(layer.lora_A[active].weight), whole(layer.lora_B[active].weight)
        if folder is not None:
            down = nn.functional.pad(down.float(), (0, 0, 0, rank - len(down)))
            up = nn.functional.pad(up.float() * layer.scaling[active], (0, rank - up.shape[1]))
            tensors[f"base_model.model.{path}.lora_A.weight"] = down.to("cpu", dtype)
            tensors[f"base_model.model.{path}.lora_B.weight"] = up.to("cpu", dtype)
    clock["gather"] += time.monotonic() - started
    started = time.monotonic()
    strange = next((n for n, t in tensors.items() if not torch.isfinite(t).all()), None)
    fault = (
        f"The adapter's {strange} holds numbers that are not finite: training has diverged."
        if strange
        else None
    )
    if folder is not None and fault is None:
        fault = _fault_of(partial(_save_adapter, tensors, rank, layers, policy, folder), folder)
    clock["write"] += time.monotonic() - started
    agree(fault)


def _save_adapter(
    tensors: Mapping[str, Tensor],
    rank: int,
    layers: Sequence[tuple[str, Any]],
    policy: nn.Module,
    folder: Path,
) -> None:
    from peft import LoraConfig
    from safetensors.torch import save_file

    beside = folder.with_name(folder.name + WRITING)
    beside.mkdir(parents=True)
    try:
        save_file(dict(tensors), beside / "adapter_model.safetensors", metadata={"format": "pt"})
        paths = {path for path, _ in layers}
        names = {path.rpartition(".")[2] for path in paths}
        alike = {path for path, _ in innermost(policy).named_modules() if path.rpartition(".")[2] in names}
        if alike != paths:  # some layers have none
            names = paths
        base = getattr(getattr(policy, "config", None), "_name_or_path", None) or None
        config = LoraConfig(
            r=rank,
            lora_alpha=rank,
            target_modules=sorted(names),
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
        )
        config.inference_mode = True
        config.save_pretrained(str(beside))
        seal(beside, {})
        compare(beside, tensors)
        os.rename(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
