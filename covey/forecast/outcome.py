"""What came of a run, from its record: to be held beside what was foreseen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import covey.runs
from covey.metrics import PHASES


@dataclass(frozen=True)
class Outcome:
    """Means over the steps of a run; of the first step only where there is no other."""

    steps: int
    seconds: dict[str, float]
    """By phase, medians over steps: the first one warms up, and a busy machine has slow ones."""
    peak_mb: float
    """Most memory that any step came to, in MiB."""
    completion_tokens: float
    """Mean length of a completion."""

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


def outcome(run: str | Path) -> Outcome:
    """Read the record of a run.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it has no steps yet.
    """
    steps = covey.runs.open(run).steps()
    if steps.empty:
        raise ValueError(f"{run} has no steps yet.")
    later = steps.iloc[1:] if len(steps) > 1 else steps
    return Outcome(
        steps=len(steps),
        seconds={phase: float(later[f"seconds/{phase}"].median()) for phase in PHASES},
        peak_mb=float(steps["memory/peak_mb"].max()),
        completion_tokens=float(steps["completions/mean_length"].mean()),
    )
