"""Seconds per step: measured in a few steps of the real trainer before a run, or read from the record of a run."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import covey.runs
from covey.metrics import PHASES
from covey.plan import Plan
from covey.recipes import Recipe

STEPS = 3
"""Rounds of sampling that are measured, after one that warms up."""

QUIET: Mapping[str, object] = {
    "report_to": "none", "record": False, "save_strategy": "no", "push_to_hub": False, "eval_strategy": "no",
    "eval_on_start": False, "load_best_model_at_end": False, "disable_tqdm": True, "display": "plain",
    "logging_strategy": "steps", "logging_steps": 1, "log_completions": False, "resume_from_checkpoint": None,
    "generation_batch_size": None,
}  # fmt: skip
"""Settings under which a measurement writes, prints and evaluates nothing."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, with the lengths and the memory that belong to them."""

    steps: int
    """Steps that were trained, the first included."""
    phases: Mapping[str, float]
    """Seconds by phase, medians over the steps: a busy machine has slow ones."""
    seconds: float
    """Median seconds of a whole step."""
    low: float
    """Seconds of the fastest step."""
    high: float
    """Seconds of the slowest step."""
    mean_tokens: float
    """Mean length of a completion."""
    cut_share: float
    """Share of the completions that hit the limit."""
    peak_mb: float
    """Most memory that any step came to, in MiB."""
    completions: int | None = None
    """Completions of a step on the process that was measured; None: read from a record."""


def measure(recipe: Recipe, plan: Plan, rounds: int = STEPS) -> StepTime:
    """Train a few whole steps on the real data, in a folder that is thrown away.

    Where several optimizer steps share a round of sampling, a step's seconds are the mean over its round. A plan for
    several processes is measured on this one, with the share of one, or more where its groups would not be whole.

    Args:
        rounds: rounds of sampling that are measured, after one that warms up.

    Raises:
        CoveyError: what training would raise.
    """
    with tempfile.TemporaryDirectory(prefix="covey-plan-") as folder:
        train = {
            **QUIET,
            "output_dir": folder,
            "max_steps": (rounds + 1) * plan.steps_per_rollout,
            "gradient_accumulation_steps": plan.accumulation,
            "steps_per_generation": None
            if plan.micro_batches_per_pass == plan.accumulation
            else plan.micro_batches_per_pass,
        }
        # the plan and the logs of the measurement are not those of the run
        with contextlib.redirect_stdout(io.StringIO()):
            trainer = recipe.replaced(train=train, eval=None, callbacks=None, compute_metrics=None).trainer()
            trainer.train()
    logged = [entry for entry in trainer.state.log_history if "time/sample" in entry]
    size, spent = plan.steps_per_rollout, {}
    for phase in PHASES:
        seconds = [entry[f"time/{phase}"] for entry in logged]
        spent[phase] = [fmean(seconds[first : first + size]) for first in range(0, len(seconds), size)]
    timing = _step_time(
        spent,
        steps=len(logged),
        mean_tokens=fmean(entry["completions/mean_length"] for entry in logged),
        cut_share=fmean(entry["completions/clipped_ratio"] for entry in logged),
        peak_mb=max(entry["memory/peak_mb"] for entry in logged),
    )
    return replace(timing, completions=trainer.plan.completions_per_step)


def recorded(run: str | Path) -> StepTime:
    """Return the seconds of a run's steps from its record.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it has no steps yet.
    """
    steps = covey.runs.open(run).steps()
    if steps.empty:
        raise ValueError(f"{run} has no steps yet.")
    return _step_time(
        {phase: [float(s) for s in steps[f"seconds/{phase}"]] for phase in PHASES},
        steps=len(steps),
        mean_tokens=float(steps["completions/mean_length"].mean()),
        cut_share=float(steps["completions/clipped_ratio"].mean()),
        peak_mb=float(steps["memory/peak_mb"].max()),
    )


def _step_time(
    spent: Mapping[str, Sequence[float]], steps: int, mean_tokens: float, cut_share: float, peak_mb: float
) -> StepTime:
    """Summarise seconds by phase; the first of them warms up, and counts only where there is no other."""
    later = {phase: seconds[1:] or seconds for phase, seconds in spent.items()}
    whole = [sum(step) for step in zip(*later.values(), strict=True)]
    return StepTime(
        steps=steps,
        phases={phase: median(seconds) for phase, seconds in later.items()},
        seconds=median(whole),
        low=min(whole),
        high=max(whole),
        mean_tokens=mean_tokens,
        cut_share=cut_share,
        peak_mb=peak_mb,
    )
