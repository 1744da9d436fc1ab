"""The surroundings of a run: python, libraries, machine, git. Nothing here may stop a run; what cannot be found is left out."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sized
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from covey import __version__
from covey.runs.record.json_text import Json
from covey.text.secrets import without_secret_options, without_secrets

if TYPE_CHECKING:
    from torch import nn

LIBRARIES = (
    "torch", "transformers", "accelerate", "peft", "datasets", "numpy", "pyarrow", "safetensors", "tokenizers",
    "math-verify", "bitsandbytes", "vllm", "flash-attn", "deepspeed",
)  # fmt: skip

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "WORLD_SIZE", "RANK", "LOCAL_RANK", "PYTHONHASHSEED", "HF_HUB_OFFLINE",
    "TOKENIZERS_PARALLELISM", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
"""Environment variables that change what a run computes; no others are recorded."""

MAX_DIFF_CHARS = 100_000
GIT_SECONDS = 5.0


def environment() -> Json:
    """Return python, libraries, machine and command line."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "host": platform.node(),
        **hardware(),
        "libraries": libraries(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "command": without_secret_options(sys.argv),
    }


def hardware() -> Json:
    """Return processor, cores, memory and accelerators; torch is asked for those only where the run has imported it."""
    described, memory = None, None
    with contextlib.suppress(OSError):
        processors = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        described = re.search(r"^model name.*?:(.*)", processors, re.MULTILINE)
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    torch = sys.modules.get("torch")
    devices = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else 0
    return {
        "processor": described[1].strip() if described else platform.processor() or None,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": memory,
        "accelerators": [torch.cuda.get_device_name(i) for i in range(devices)] if torch is not None else [],
    }


def libraries() -> dict[str, str]:
    """Return the installed version by name, without importing any."""
    found = {name: version for name in LIBRARIES if (version := _version(name)) is not None}
    return {"covey": __version__, **found}


@functools.cache  # a process keeps what it has imported, and each of these files takes milliseconds to read
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_state(folder: str | Path = ".") -> Json | None:
    """Return commit, branch, cleanness and the difference to the commit; None outside a repository or without git."""
    head = _git(folder, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if head is None:
        return None
    commit, branch = head.splitlines()
    status = _git(folder, "status", "--porcelain") or ""
    diff = without_secrets(_git(folder, "diff", "HEAD") or "")
    left_out = max(0, len(diff) - MAX_DIFF_CHARS)
    return {
        "commit": commit,
        "branch": branch,
        "clean": not status,
        "changed": status.splitlines()[:100],
        "diff": diff[:MAX_DIFF_CHARS] + (f"\n[{left_out} characters left out]" if left_out else ""),
    }


def model_facts(policy: nn.Module, name: str) -> Json:
    """Return what the record and the hints need of the policy: sizes, and type and scale of the trained weights."""
    trainable = [p for p in policy.parameters() if p.requires_grad]
    largest = max(trainable, key=lambda p: p.numel(), default=None)
    return {
        "name": name,
        "parameters": sum(p.numel() for p in policy.parameters()),
        "trainable": sum(p.numel() for p in trainable),
        "weights_dtype": str(trainable[0].dtype).removeprefix("torch.") if trainable else None,
        "weight_scale": None
        if largest is None
        else float(largest.detach().abs().float().flatten()[:100_000].median()),
    }


def dataset_facts(dataset: object, name: str | None = None) -> Json:
    """Return name, rows, columns and fingerprint of a dataset, as far as it tells."""
    try:
        rows = len(dataset) if isinstance(dataset, Sized) else None
    except TypeError:  # a stream that has a length only by name
        rows = None
    return {
        "name": name,
        "rows": rows,
        "columns": list(getattr(dataset, "column_names", None) or []),
        "fingerprint": getattr(dataset, "_fingerprint", None),
    }


def process_facts() -> Json:
    """Return what tells this process from others, also after its number was given to another one."""
    return {"pid": os.getpid(), "host": platform.node(), "process_start": process_start(os.getpid())}


def process_start(pid: int) -> str | None:
    """Return when a process began, in the kernel's own unit; None where that is not known."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        )
    except (OSError, IndexError):
        return None
    return fields[19]  # field 22 of proc(5), counted behind the command's closing bracket


def _git(folder: str | Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, encoding="utf-8", errors="replace", timeout=GIT_SECONDS, check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
