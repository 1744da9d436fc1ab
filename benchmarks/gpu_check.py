#!/usr/bin/env python
"""Everything that only a GPU can confirm, in a few minutes: laws, distances, speed and memory, as one table.

    make gpu-check
    python benchmarks/gpu_check.py --device cpu --tiny     the same laws where there is no GPU, to test this script

Exit status: 0 everything holds, 1 something does not, 2 there is no such device.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_laws
import gpu_speed

CASES = [(8, 76, 128), (64, 76, 128), (64, 512, 128), (256, 512, 128)]
"""Completions of one prompt, its tokens, new tokens."""

TINY_CASES = [(4, 16, 8)]


class Table:
    """Rows as they come, and how many did not hold."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, name: str, work: Callable[[], str]) -> None:
        """Do some work that returns what it found, and print a row about it."""
        start = time.perf_counter()
        try:
            found, holds = work(), True
        except Exception as error:  # a check that breaks must not hide the others
            traceback.print_exc()
            found, holds = f"{type(error).__name__}: {error}"[:200], False
        self.failed += not holds
        seconds = time.perf_counter() - start
        print(f"{'ok  ' if holds else 'FAIL'} {seconds:6.1f} s  {name:48} {found}", flush=True)


def laws(table: Table, device: torch.device) -> None:
    """Every law of this kind of device."""
    chosen = [*gpu_laws.LAWS, *(gpu_laws.CUDA_LAWS if device.type == "cuda" else ())]
    for law in chosen:
        table.check(law.__name__.replace("_", " "), lambda law=law: law(device))  # type: ignore[misc]


def figures(table: Table, device: torch.device, tiny: bool) -> None:
    """Distances and speeds of a policy of real shape."""
    model = gpu_speed.policy(device, gpu_speed.TINY if tiny else gpu_speed.REAL)
    table.check("self-check in bfloat16, mean gap in nats", lambda: _gaps(model))
    for case in TINY_CASES if tiny else CASES:
        name = "{} completions, prompt {}, {} new".format(*case)
        table.check(name, lambda case=case: _speed(model, *case))  # type: ignore[misc]


def _gaps(model: Any) -> str:
    return "; ".join(f"{gap:.3f} {name}" for name, gap in gpu_speed.selfcheck_gaps(model))


def _speed(model: Any, *case: int) -> str:
    found = gpu_speed.sampling(model, *case)
    own, other = found["native"], found["transformers"]
    speed = f"{own['tokens per second']:,.0f} tokens/s, transformers {other['tokens per second']:,.0f}"
    ratio = own["tokens per second"] / other["tokens per second"]
    return f"{speed}: {ratio:.1f} x; peak MB {own['peak MB']:.0f} and {other['peak MB']:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ..., or cpu (default: cuda)")
    parser.add_argument(
        "--tiny", action="store_true", help="figures of a tiny policy: they mean nothing, but are quick"
    )
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "There is no CUDA device here. `--device cpu --tiny` checks the laws without one.",
            file=sys.stderr,
        )
        return 2
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
    print(f"{name}, torch {torch.__version__}")
    table = Table()
    laws(table, device)
    figures(table, device, args.tiny)
    print(f"{table.failed} checks failed" if table.failed else "everything holds")
    return int(bool(table.failed))


if __name__ == "__main__":
    sys.exit(main())
