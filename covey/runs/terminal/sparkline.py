"""Curves in one line of text, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"


class Curve:
    """The course of a number over a whole run in at most `capacity` means of equally many steps.

    When it is full, neighbours are averaged and each mean stands for twice as many steps.
    """

    def __init__(self, capacity: int = 128) -> None:
        self.capacity = capacity
        self.last: float | None = None
        self._means: list[float] = []
        self._stride = 1
        self._open: list[float] = []

    def add(self, value: float) -> None:
        self.last = value
        self._open.append(value)
        if len(self._open) == self._stride:
            self._means.append(sum(self._open) / self._stride)
            self._open.clear()
        if len(self._means) == self.capacity:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means = [(a + b) / 2 for a, b in pairs]
            self._stride *= 2

    def points(self) -> list[float]:
        """Return the means so far; the last one of fewer steps where the count is uneven."""
        return [*self._means, sum(self._open) / len(self._open)] if self._open else list(self._means)


def sparkline(
    values: Sequence[float], width: int, low: float | None = None, high: float | None = None
) -> str:
    """Return values as bars from `low` to `high` (by default their own range), at most `width` characters.

    More values than characters are averaged in equal parts; a range of nothing is drawn as a low line.
    """
    if not values or width < 1:
        return ""
    points = list(values)
    if len(points) > width:
        edges = [round(i * len(points) / width) for i in range(width + 1)]
        points = [sum(points[a:b]) / (b - a) for a, b in pairwise(edges)]
    low = min(points) if low is None else low
    high = max(points) if high is None else high
    if high - low <= 1e-12 * max(abs(high), abs(low), 1e-300):
        return BARS[0] * len(points)
    top = len(BARS) - 1
    return "".join(BARS[min(top, max(0, round((p - low) / (high - low) * top)))] for p in points)
