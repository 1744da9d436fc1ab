"""What the record, the hints and the display cost: their share of the step time of the quickstart's run.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --steps 40 --display plain

The bundled policy is trained as `covey quickstart` does, with every completion recorded, and completions.jsonl. What is
timed is every call from the training loop that records or shows, the final close included; the baseline is the rest of
the time of the same steps. The live display draws for a terminal of 120 × 50 characters, whose output is thrown away.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from datasets import Dataset
from rich.console import Console
from transformers import TrainerCallback

import covey.trainer.run_log
from covey import GRPOConfig, GRPOTrainer
from covey.runs.hints.watch import HintWatch
from covey.runs.record.writer import RunWriter
from covey.runs.terminal.display import Display
from covey.tasks import assets, quickstart_run
from covey.trainer.run_log import RunLog

PARTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "all": (RunLog, ("record_groups", "record_step", "show_completions", "sync", "close")),
    "  the record": (RunWriter, ("groups", "step", "event", "sync", "close")),
    "  hints": (HintWatch, ("step",)),
    "  the display": (Display, ("update", "hint", "close")),
}


class StepTimes(TrainerCallback):
    """Wall time from the first step's end to the end of training; the first step warms up."""

    def __init__(self, spent: dict[str, float]) -> None:
        self.spent, self.begin, self.steps = spent, 0.0, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self.begin = time.perf_counter()
            self.spent.clear()
        self.steps = state.global_step - 1


def timed(spent: dict[str, float], part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - begin

    return call


def measure(steps: int, display: str, folder: str) -> tuple[dict[str, float], float, int]:
    """Seconds spent in each part, seconds in all, and the steps that were measured."""
    spent: dict[str, float] = defaultdict(float)
    for part, (owner, names) in PARTS.items():
        for name in names:
            setattr(owner, name, timed(spent, part, getattr(owner, name)))
    if display == "live":
        console = Console(file=open(os.devnull, "w"), force_terminal=True, width=120, height=50)  # noqa: SIM115
        covey.trainer.run_log.Display = functools.partial(Display, console=console)  # type: ignore[assignment, misc]
    times = StepTimes(spent)
    settings = {**quickstart_run.settings(steps=steps), "display": display}
    trainer = GRPOTrainer(
        str(assets.POLICY),
        quickstart_run.RULES,
        GRPOConfig(output_dir=folder, **settings),
        Dataset.from_list(quickstart_run.train_rows(steps=steps)),
        callbacks=[times],
    )
    trainer.train()
    return spent, time.perf_counter() - times.begin, times.steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--display", choices=("live", "plain"), default="live")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        spent, seconds, steps = measure(arguments.steps, arguments.display, folder)
    print(f"{steps} steps of {seconds / steps * 1e3:.0f} ms")
    for part in PARTS:
        share = spent[part] / (seconds - spent["all"])
        print(f"{part:<16} {spent[part] / steps * 1e3:8.2f} ms per step  {share:7.2%}")


if __name__ == "__main__":
    main()
