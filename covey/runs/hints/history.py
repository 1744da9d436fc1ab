"""The numbers of a run as rules read them: short looks at the last and the first steps.

The same history serves a run that goes on (it grows by a step, and its memory is bounded) and one that ended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_POINTS = 2048
"""Points kept per number. When they are full, every second one of the older half goes."""


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """One evaluation of one set."""

    name: str
    step: int
    metrics: Mapping[str, float]
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Trend:
    """A number early and late in a run."""

    early: float
    late: float
    z: float
    """The difference in standard errors, steps taken for independent."""

    @property
    def ratio(self) -> float:
        return self.late / self.early if self.early else math.inf


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest and largest value of a number over all steps."""

    low: float
    high: float
    count: int
    """Steps that had a value."""


@dataclass
class _Series:
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    count: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, step: int, value: float) -> None:
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.steps.append(step)
        self.values.append(value)
        if len(self.values) > MAX_POINTS:
            half = MAX_POINTS // 2
            self.steps[:half] = self.steps[:half:2]
            self.values[:half] = self.values[:half:2]


@dataclass
class Numbers:
    """Numbers by name over the steps so far: the metrics of a run, or its group statistics."""

    _series: dict[str, _Series] = field(default_factory=dict)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take in the numbers of one step; one that is not finite is left out."""
        for name, value in numbers.items():
            if value is not None and math.isfinite(value):
                self._series.setdefault(name, _Series()).add(step, float(value))

    def named(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the names of the numbers so far that the whole pattern describes, in the order in which they came."""
        return [name for name in self._series if pattern.fullmatch(name)]

    def values(self, name: str, last: int | None = None) -> Floats:
        """Return the values of a number in the order of the steps; the `last` ones only, or all that are kept."""
        series = self._series.get(name)
        if series is None:
            return np.empty(0)
        return np.asarray(series.values if last is None else series.values[-last:], dtype=np.float64)

    def mean(self, name: str, last: int) -> float | None:
        """Return the mean of the last values of a number; None where there are fewer."""
        values = self.values(name, last)
        return float(values.mean()) if values.size >= last else None

    def early_median(self, name: str, count: int = 20) -> float | None:
        """Return the median of the first values of a number; None where there is none."""
        values = self.values(name)[:count]
        return float(np.median(values)) if values.size else None

    def range(self, name: str) -> Range | None:
        """Return how far a number has gone since the first step; None where it was never logged."""
        series = self._series.get(name)
        return None if series is None else Range(series.low, series.high, series.count)

    def trend(self, name: str, minimum: int = 40) -> Trend | None:
        """Return how a number moved from the first to the last quarter of the steps; None with fewer than `minimum` steps."""
        values = self.values(name)
        return trend(values) if values.size >= minimum else None

    def since(self, name: str, step: int) -> Floats:
        """Return the values of a number at that step and later."""
        series = self._series.get(name, _Series())
        kept = [v for s, v in zip(series.steps, series.values, strict=True) if s >= step]
        return np.asarray(kept, dtype=np.float64)


@dataclass
class History:
    """Metrics and group statistics of the steps so far, evaluations, and what the run was set up with."""

    settings: Mapping[str, object] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    model: Mapping[str, object] = field(default_factory=dict)
    tools: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By name: `where` it runs, as in the head of the record."""
    evaluations: list[EvaluationPoint] = field(default_factory=list)
    step: int = 0
    length: int = 0
    """Steps seen."""
    metrics: Numbers = field(default_factory=Numbers)
    statistics: Numbers = field(default_factory=Numbers)

    def add(
        self, step: int, metrics: Mapping[str, float], statistics: Mapping[str, float] | None = None
    ) -> None:
        """Take in one step. A step without new groups has no statistics."""
        self.step = step
        self.length += 1
        self.metrics.add(step, metrics)
        self.statistics.add(step, statistics or {})


def trend(values: Floats) -> Trend:
    """Return how values moved from their first to their last quarter; two of each at least."""
    quarter = max(2, values.size // 4)
    first, last = values[:quarter], values[-quarter:]
    error = math.sqrt(first.var(ddof=1) / first.size + last.var(ddof=1) / last.size)
    difference = float(last.mean() - first.mean())
    size = max(abs(float(first.mean())), abs(float(last.mean())))
    if error <= 1e-9 * size:
        z = 0.0 if abs(difference) <= 1e-9 * size else math.copysign(math.inf, difference)
    else:
        z = difference / error
    return Trend(float(first.mean()), float(last.mean()), z)
