"""Weights that change over training: functions of progress, 0 at the first step and 1 at the last."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Schedule = Callable[[float], float]
"""Progress in [0, 1] → weight."""

Weight = float | Schedule | Mapping[str, float | Schedule]
"""A number, a schedule, or either by task. In a mapping, the key `*` stands for all other tasks; without it they have 0."""


@dataclass(frozen=True)
class Ramp:
    """From `start` to `end` between two points of training; constant before and after."""

    start: float
    end: float
    begin: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.until <= 1:
            raise ValueError(
                f"begin={self.begin}, until={self.until}: points of training are in [0, 1], and begin comes first."
            )

    def share(self, progress: float) -> float:
        """Return how much of the way from begin to until is done, from 0 to 1."""
        return min(max((progress - self.begin) / (self.until - self.begin), 0.0), 1.0)


class Linear(Ramp):
    """From `start` to `end` along a line, between two points of training; constant before and after."""

    def __call__(self, progress: float) -> float:
        return self.start + (self.end - self.start) * self.share(progress)


class Cosine(Ramp):
    """From `start` to `end` along a half cosine, between two points of training; constant before and after."""

    def __call__(self, progress: float) -> float:
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * self.share(progress)))


class Steps:
    """A weight that jumps: `Steps({0.0: 1.0, 0.5: 0.1})` is 1.0 in the first half and 0.1 in the second."""

    def __init__(self, weights: Mapping[float, float]) -> None:
        if 0.0 not in weights or not all(0 <= point <= 1 for point in weights):
            raise ValueError(
                f"Steps({dict(weights)!r}): points of training are in [0, 1], and 0.0 is one of them."
            )
        self.points = sorted(weights)
        self.weights = [float(weights[point]) for point in self.points]

    def __call__(self, progress: float) -> float:
        return self.weights[bisect_right(self.points, progress) - 1]


def progress_of(trainer_state: object) -> float:
    """Return how far training is, from 0 to 1; 0 outside of training."""
    step, total = getattr(trainer_state, "global_step", 0), getattr(trainer_state, "max_steps", 0)
    return min(max(step / total, 0.0), 1.0) if total and total > 0 else 0.0


def weight_at(weight: Weight, task: str | None, progress: float) -> float:
    """Return the number that a weight is for one task at one point of training."""
    if isinstance(weight, Mapping):
        weight = weight.get("*" if task is None else task, weight.get("*", 0.0))
    return float(weight(progress)) if callable(weight) else float(weight)


def start_weight(weight: Weight) -> float:
    """Return a weight at the start of training; of weights by task, the largest."""
    if isinstance(weight, Mapping):
        return max((weight_at(part, None, 0.0) for part in weight.values()), default=0.0)
    return weight_at(weight, None, 0.0)
