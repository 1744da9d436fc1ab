"""What benchmarks share that run rivals in processes of their own: clock, memory, a worker's environment, options, rows."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def clock(kind: str) -> Callable[[], float]:
    """Seconds on the wall, or of this process's processor time."""
    return time.process_time if kind == "cpu" else time.perf_counter


def forget_peak() -> None:
    """Let `peak` begin anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """The most resident memory since `forget_peak`, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


def environment(threads: int, **more: str) -> dict[str, str]:
    """Of a worker."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", **more}


def add_options(
    parser: argparse.ArgumentParser, cases: list[str], dtypes: list[str], rounds: int, workers: Iterable[str]
) -> None:
    """Options that every such benchmark has; `--worker` and `--dtype` are for its own processes."""
    parser.add_argument("--cases", nargs="+", default=cases)
    parser.add_argument("--dtypes", nargs="+", default=dtypes, help="compute")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="`cpu` counts processor seconds: for a machine that others use too, with --threads 1",
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", help="write the rows there too, each as soon as it is measured")
    parser.add_argument("--worker", choices=list(workers), help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default=dtypes[0], help=argparse.SUPPRESS)


def report(rows: Iterable[dict[str, Any]], show: Callable[[dict[str, Any]], None], path: str | None) -> None:
    """Show each row as soon as it is measured, and write all that there are to `path`."""
    seen = []
    for row in rows:
        show(row)
        seen.append(row)
        if path:
            Path(path).write_text(json.dumps(seen, indent=1))
