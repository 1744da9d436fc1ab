"""The numbers of a run as rules read them: short looks at the last and the first steps.

The same history serves a run that goes on (it grows by a step, and its memory is bounded) and one that ended.
"""

from __future__ import annotations

import math
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
class History:
    """Metrics and group statistics of the steps so far, evaluations, and what the run was set up with."""

    settings: Mapping[str, object] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    model: Mapping[str, object] = field(default_factory=dict)
    evaluations: list[EvaluationPoint] = field(default_factory=list)
    step: int = 0
    length: int = 0
    """Steps seen."""
    _metrics: dict[str, _Series] = field(default_factory=dict)
    _statistics: dict[str, _Series] = field(default_factory=dict)

    def add(
        self, step: int, metrics: Mapping[str, float], statistics: Mapping[str, float] | None = None
    ) -> None:
        """Take in one step. A step without new groups has no statistics."""
        self.step = step
        self.length += 1
        for kind, numbers in ((self._metrics, metrics), (self._statistics, statistics or {})):
            for name, value in numbers.items():
                if value is not None and math.isfinite(value):
                    kind.setdefault(name, _Series()).add(step, float(value))

    def metric(self, name: str, last: int | None = None) -> Floats:
        """Return the values of a metric in the order of the steps; the `last` ones only, or all that are kept."""
        return _values(self._metrics, name, last)

    def statistic(self, name: str, last: int | None = None) -> Floats:
        """Return the values of a group statistic in the order of the steps."""
        return _values(self._statistics, name, last)

    def mean(self, name: str, last: int) -> float | None:
        """Return the mean of the last values of a metric; None where there are fewer."""
        return _mean(self.metric(name, last), last)

    def statistic_mean(self, name: str, last: int) -> float | None:
        return _mean(self.statistic(name, last), last)

    def first(self, name: str, count: int) -> Floats:
        """Return the first values of a metric."""
        series = self._metrics.get(name)
        return np.asarray(series.values[:count] if series else (), dtype=np.float64)

    def early_median(self, name: str, count: int = 20) -> float | None:
        """Return the median of the first values of a metric; None where there is none."""
        values = self.first(name, count)
        return float(np.median(values)) if values.size else None

    def metric_range(self, name: str) -> Range | None:
        """Return how far a metric has gone since the first step; None where it was never logged."""
        return _range(self._metrics, name)

    def statistic_range(self, name: str) -> Range | None:
        return _range(self._statistics, name)

    def trend(self, name: str, minimum: int = 40) -> Trend | None:
        """Return how a metric moved from the first to the last quarter of the steps; None with fewer than `minimum` steps."""
        series = self._metrics.get(name)
        if series is None or len(series.values) < minimum:
            return None
        quarter = len(series.values) // 4
        return trend_between(np.asarray(series.values[:quarter]), np.asarray(series.values[-quarter:]))

    def metric_since(self, name: str, step: int) -> Floats:
        """Return the values of a metric at that step and later."""
        series = self._metrics.get(name)
        if series is None:
            return np.empty(0)
        return np.asarray([v for s, v in zip(series.steps, series.values, strict=True) if s >= step])


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


def trend(values: Floats) -> Trend:
    """Return how values moved from their first to their last quarter."""
    quarter = max(2, values.size // 4)
    return trend_between(values[:quarter], values[-quarter:])


def trend_between(first: Floats, last: Floats) -> Trend:
    """Return how values moved from some early ones to some late ones; two of each at least."""
    error = math.sqrt(first.var(ddof=1) / first.size + last.var(ddof=1) / last.size)
    difference = float(last.mean() - first.mean())
    size = max(abs(float(first.mean())), abs(float(last.mean())))
    if error <= 1e-9 * size:
        z = 0.0 if abs(difference) <= 1e-9 * size else math.copysign(math.inf, difference)
    else:
        z = difference / error
    return Trend(float(first.mean()), float(last.mean()), z)


def _values(kind: dict[str, _Series], name: str, last: int | None) -> Floats:
    series = kind.get(name)
    if series is None:
        return np.empty(0)
    return np.asarray(series.values if last is None else series.values[-last:], dtype=np.float64)


def _range(kind: dict[str, _Series], name: str) -> Range | None:
    series = kind.get(name)
    return None if series is None else Range(series.low, series.high, series.count)


def _mean(values: Floats, last: int) -> float | None:
    return float(values.mean()) if values.size >= last else None
