"""Threads of torch on a CPU: fewer than its default where more would wait for one another longer than they compute.

The number follows from the policy's size and from the machine, never from a measurement: the number of threads may change
the last bits of a sum, and a run that is repeated or resumed is to have the same ones. Threads that wait are what makes a
run crawl where other work shares its cores: every operation waits for the slowest of them, and the others keep their cores
busy meanwhile. How long they do changes no sum: `covey/__init__.py` shortens it where torch is not loaded yet.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil
import torch

SMALL = 4_000_000
"""Weights below which an operation takes about as long as its threads take to meet: `benchmarks/threads.py`."""

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Processor time that a container may use, in microseconds per period; control groups, version 2."""

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

_chosen: list[tuple[int, int]] = []
"""Threads that were set here last, and those before."""


def settle_threads(weights: int) -> str | None:
    """Set torch's threads for a policy of so many weights; return what was done in one line, None where nothing was.

    Nothing is done where the user has said how many: by a variable of the environment, or by `torch.set_num_threads`.
    """
    if _chosen and torch.get_num_threads() == _chosen[-1][0]:  # for another policy, in the same process
        torch.set_num_threads(_chosen.pop()[1])
    present, cores = torch.get_num_threads(), usable_cores()
    if any(os.environ.get(name) for name in VARIABLES) or present not in cores:
        return None
    allowed = quota(QUOTA.read_text(encoding="ascii")) if QUOTA.exists() else None
    wanted, reason = present, ""
    if allowed is not None and allowed < present:
        wanted, reason = allowed, f"the container may use {allowed} of the machine's cores"
    if weights < SMALL and wanted > 1:
        wanted, reason = (
            1,
            f"for a policy of {weights / 1e6:.1f} million weights more would wait for one another",
        )
    if wanted == present:
        return None
    torch.set_num_threads(wanted)
    _chosen.append((wanted, present))
    return f"Threads: {wanted} in place of {present}; {reason}. OMP_NUM_THREADS sets another number."


def usable_cores() -> set[int]:
    """Return the numbers of threads that torch takes by itself here; any other was set by the user."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {mine, psutil.cpu_count(logical=False) or mine, os.cpu_count() or mine}


def quota(text: str) -> int | None:
    """Return the whole cores that `cpu.max` allows, one at least; None where there is no limit."""
    spent, _, period = text.strip().partition(" ")
    return None if spent == "max" or not period else max(1, math.floor(int(spent) / int(period)))
