"""Values that add up over micro-batches and ranks.

A step returns its metrics as sums and counts; `Ledger` adds them up and reduces once, when they are logged. So a mean
of means cannot happen, a batch that nothing applied to cannot turn a mean into NaN, and the keys are the same at every
logged step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Protocol, TypedDict, TypeVar

M = TypeVar("M", bound="Metric")
E = TypeVar("E", bound="Extreme")

PHASES = ("sample", "score", "update")
"""Phases of an optimizer step, whose seconds are measured."""


class Metric(Protocol):
    """Something that adds up and has one final number."""

    def merge(self: M, other: M) -> M: ...

    @property
    def value(self) -> float | None:
        """The number, or None where there was nothing to measure."""
        ...


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, kept as sum and count."""

    total: float
    count: float = 1.0

    @classmethod
    def of(cls, values: Iterable[float], weights: Iterable[float] | None = None) -> Mean:
        """Return the mean of values, each of which counts as its weight says; without weights, each counts 1."""
        kept = [float(v) for v in values]
        if weights is None:
            return cls(math.fsum(kept), len(kept))
        counts = [float(w) for w in weights]
        return cls(math.fsum(v * w for v, w in zip(kept, counts, strict=True)), math.fsum(counts))

    def merge(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class Once(Mean):
    """A mean that is measured once in a run: it is logged where it was measured, and nowhere else."""

    def merge(self, other: Mean) -> Once:
        return Once(self.total + other.total, self.count + other.count)


@dataclass(frozen=True, slots=True)
class Rate:
    """A frequency, kept as the counts of events and of their chances; without a chance it is 0."""

    events: float
    chances: float

    def merge(self, other: Rate) -> Rate:
        return Rate(self.events + other.events, self.chances + other.chances)

    @property
    def value(self) -> float | None:
        return self.events / self.chances if self.chances else 0.0


@dataclass(frozen=True, slots=True)
class Total:
    """A sum."""

    total: float

    def merge(self, other: Total) -> Total:
        return Total(self.total + other.total)

    @property
    def value(self) -> float | None:
        return self.total


@dataclass(frozen=True, slots=True)
class Evenness:
    """The effective sample size of weights as a share of their number, (Σw)² / (n Σw²): 1 where all are alike, 1/n where one
    holds all.

    Source: Kish (1965), section 11.7. Of weights that are all 0 it is 0.
    """

    count: float
    total: float
    squares: float

    def merge(self, other: Evenness) -> Evenness:
        return Evenness(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def value(self) -> float | None:
        if not self.count:
            return None
        return self.total**2 / (self.count * self.squares) if self.squares else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A sample standard deviation (n - 1), kept as count, mean and sum of squared deviations.

    Merged by Chan's pairwise update (Chan, Golub, LeVeque 1983, eq. 2.1), which keeps its digits where a sum of
    squares would cancel. Fewer than two values have no spread: 0.
    """

    count: float
    mean: float
    squares: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        kept = [float(v) for v in values]
        if not kept:
            return cls(0.0, 0.0, 0.0)
        mean = math.fsum(kept) / len(kept)
        return cls(len(kept), mean, math.fsum((v - mean) ** 2 for v in kept))

    def merge(self, other: Spread) -> Spread:
        count = self.count + other.count
        if not count:
            return self
        gap = other.mean - self.mean
        mean = self.mean + gap * other.count / count
        squares = self.squares + other.squares + gap * gap * self.count * other.count / count
        return Spread(count, mean, squares)

    @property
    def value(self) -> float | None:
        if not self.count:
            return None
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Extreme:
    """The one number of many that `pick` takes; None: nothing was measured."""

    number: float | None
    pick: ClassVar[Callable[..., float | None]]

    @classmethod
    def of(cls: type[E], values: Iterable[float]) -> E:
        return cls(cls.pick(values, default=None))

    def merge(self: E, other: E) -> E:
        return self.of(v for v in (self.number, other.number) if v is not None)

    @property
    def value(self) -> float | None:
        return self.number


class Largest(Extreme):
    """A maximum."""

    __slots__ = ()
    pick: ClassVar[Callable[..., float | None]] = max


class Smallest(Extreme):
    """A minimum."""

    __slots__ = ()
    pick: ClassVar[Callable[..., float | None]] = min


Metrics = Mapping[str, Metric]


def merge(*parts: Metrics) -> dict[str, Metric]:
    """Add up several sets of metrics; a name may be missing from some of them."""
    merged: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


@contextmanager
def timed(note: Callable[[Metrics], object], name: str) -> Iterator[None]:
    """Note the seconds inside, also of what fails, as a sum without a count: what they are a mean over is counted elsewhere."""
    start = time.perf_counter()
    try:
        yield
    finally:
        note({name: Mean(time.perf_counter() - start, 0.0)})


class LedgerState(TypedDict):
    """A ledger as JSON holds it."""

    last: dict[str, float]
    sums: list[str]
    pending: dict[str, list[Any]]
    """The metric's class and fields, by name."""


class Ledger:
    """Collects metrics between two logged steps, and remembers every name it has seen.

    A name without a measurement since the last log keeps its last number (0 before the first), so that a curve has no
    holes and no NaN; a sum of nothing is 0; what is measured `Once` is logged once. The counts that stand beside the reward means say how many samples a number
    rests on.
    """

    def __init__(self) -> None:
        self._pending: dict[str, Metric] = {}
        self._last: dict[str, float] = {}
        self._sums: set[str] = set()

    def add(self, metrics: Metrics) -> None:
        self._pending = merge(self._pending, metrics)

    def names(self) -> set[str]:
        """Return the names that came in since the last drain."""
        return set(self._pending)

    def drain(self) -> dict[str, Metric]:
        """Return what came in since the last drain, not yet reduced, and start afresh."""
        pending, self._pending = self._pending, {}
        return pending

    def reduce(self, parts: Iterable[Metrics]) -> dict[str, float]:
        """Return the numbers of the drained parts of all ranks, with a value for every name ever seen."""
        merged = merge(*parts)
        self._sums |= {name for name, metric in merged.items() if isinstance(metric, Total)}
        self._last |= dict.fromkeys(self._sums, 0.0)
        for name, metric in merged.items():
            value = metric.value
            if value is not None and math.isfinite(value):
                self._last[name] = float(value)
            else:
                self._last.setdefault(name, 0.0)
        numbers = dict(self._last)
        for name, metric in merged.items():
            if isinstance(metric, Once):
                del self._last[name]
        return numbers

    def state(self) -> LedgerState:
        """Return what `restore` needs so that a resumed run logs the same numbers; JSON holds it."""
        pending = {name: [type(m).__name__, *astuple(m)] for name, m in self._pending.items()}  # type: ignore[call-overload]
        return {"last": dict(self._last), "sums": sorted(self._sums), "pending": pending}

    def restore(self, state: LedgerState) -> None:
        """Continue a ledger from its `state`."""
        kinds = {
            kind.__name__: kind for kind in (Mean, Once, Rate, Total, Evenness, Spread, Largest, Smallest)
        }
        self._last, self._sums = dict(state["last"]), set(state["sums"])
        self._pending = {name: kinds[kind](*values) for name, (kind, *values) in state["pending"].items()}
