"""Curves of success over sampled tokens → tokens to a success, ratios with intervals, and whether an arm is hopeless. Pure functions."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.runs.statistics import student_quantile

Point = Mapping[str, Any]
"""`tokens` sampled so far, `seconds` of training, `processor` the same as processor time, `step`, `success` by task in [0, 1], `count` of held-out problems by task."""
PATIENCE, SIGMAS = 3, 2.0
"""A run ends early where so many points in a row, behind its first, are so many standard errors below the same seed of the base."""
HOPELESS_SEEDS, HOPELESS_RATIO = 2, 1.5
"""An arm is given no further seeds where so many have each taken so many times the base's tokens, or never arrived."""


@dataclass(frozen=True)
class Ratio:
    """An arm's tokens (or seconds) by the base's, for the success that the base ends with; over seeds."""

    mean: float
    """Geometric mean."""
    low: float
    high: float
    """95 %: Student's t of the logarithms; NaN for fewer than two seeds."""
    seeds: int
    missed: int
    """Seeds in which the arm did not reach it: they count with all that they used, so that the mean is a lower bound."""

    def __str__(self) -> str:
        bound = "≥ " if self.missed else ""
        missed = f", {self.missed} of {self.seeds} never" if self.missed else ""
        return f"{bound}{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]{missed}"


def overall(point: Point, tasks: Sequence[str] = ()) -> float:
    """Return the mean success of the tasks; of all of them where none is named."""
    return statistics.fmean(point["success"][task] for task in tasks or point["success"])


def rising(values: Sequence[float]) -> list[float]:
    """Return the non-decreasing values that are nearest to these in the sum of squares (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [((a * m + b * n) / (m + n), m + n)]
    return [value for value, count in blocks for _ in range(count)]


def reached(points: Sequence[Point], target: float, axis: str = "tokens") -> float | None:
    """Return where the rising curve of success first has this value, between two points in a straight line; None: nowhere."""
    fitted = rising([overall(p) for p in points])
    for n, value in enumerate(fitted):
        if value >= target - 1e-9:
            if n == 0 or value == fitted[n - 1]:
                return float(points[n][axis])
            share = (target - fitted[n - 1]) / (value - fitted[n - 1])
            return float(points[n - 1][axis] + share * (points[n][axis] - points[n - 1][axis]))
    return None


def final(points: Sequence[Point]) -> float:
    """Return the success that a run ends with: the last value of its rising curve."""
    return rising([overall(p) for p in points])[-1]


def ratio(
    base: Mapping[int, Sequence[Point]],
    arm: Mapping[int, Sequence[Point]],
    share: float = 1.0,
    axis: str = "tokens",
) -> Ratio | None:
    """Return what an arm takes by what the base takes, in pairs of runs with the same seed; None where there is no pair.

    Args:
        base, arm: points by seed.
        share: of what the base gains from its first point to its last; 1 is the success that it ends with.
    """
    logs, missed = [], 0
    for seed in sorted(set(base) & set(arm)):
        start = overall(base[seed][0])
        target = start + share * (final(base[seed]) - start)
        own, needed = reached(base[seed], target, axis), reached(arm[seed], target, axis)
        if not own:
            continue
        missed += needed is None
        used = float(arm[seed][-1][axis]) if needed is None else needed
        logs.append(math.log(max(used, 1e-9) / own))
    if not logs:
        return None
    low, high = t_interval(logs)
    return Ratio(math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high), len(logs), missed)


def per_token(
    base: Mapping[int, Sequence[Point]], arm: Mapping[int, Sequence[Point]], axis: str = "processor"
) -> Ratio | None:
    """Return the seconds that a sampled token of an arm takes by those of the base, over pairs of runs; None where they are not known."""
    seeds = [s for s in sorted(set(base) & set(arm)) if all(r[s][-1].get(axis) for r in (base, arm))]
    costs = [[runs[s][-1][axis] / runs[s][-1]["tokens"] for s in seeds] for runs in (base, arm)]
    logs = [math.log(others / own) for own, others in zip(*costs, strict=True)]
    if not logs:
        return None
    low, high = t_interval(logs)
    return Ratio(math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high), len(logs), 0)


def of_means(
    base: Mapping[int, Sequence[Point]], arm: Mapping[int, Sequence[Point]], share: float = 1.0
) -> Ratio | None:
    """Return the ratio of tokens that the mean curves take, over the seeds that both have: less noisy than a mean of ratios.

    The interval is that of resampled pairs of seeds, every resample once for up to five: with few seeds it is too narrow.
    """
    seeds = sorted(set(base) & set(arm))
    if not seeds:
        return None
    ends = min(points[-1]["tokens"] for runs in (base, arm) for s, points in runs.items() if s in seeds)
    grid = [ends * n / 100 for n in range(101)]
    curves = [{s: [_at(runs[s], tokens) for tokens in grid] for s in seeds} for runs in (base, arm)]
    size, rng = len(seeds), random.Random(0)
    chosen = list(itertools.product(seeds, repeat=size)) if size <= 5 else []
    chosen = chosen or [tuple(rng.choices(seeds, k=size)) for _ in range(2000)]
    found = [
        _mean_ratio([[runs[s] for s in of] for runs in curves], grid, share) for of in (tuple(seeds), *chosen)
    ]
    (mean, missed), ranked = found[0], sorted(r for r, _ in found[1:])
    low, high = ranked[int(0.025 * len(ranked))], ranked[math.ceil(0.975 * len(ranked)) - 1]
    if size < 2:
        low = high = math.nan
    return Ratio(mean, low, high, size, size if missed else 0)


def _mean_ratio(
    curves: Sequence[Sequence[Sequence[float]]], grid: Sequence[float], share: float
) -> tuple[float, bool]:
    """Return the ratio of an arm's mean curve to the base's on a grid, and whether the arm never arrives."""
    own, others = (rising([statistics.fmean(v) for v in zip(*runs, strict=True)]) for runs in curves)
    target = own[0] + share * (own[-1] - own[0]) - 1e-9
    place = next(t for t, v in zip(grid, own, strict=True) if v >= target)
    there = next((t for t, v in zip(grid, others, strict=True) if v >= target), None)
    return (grid[-1] if there is None else there) / (place or grid[1]), there is None


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean by Student's t; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan, math.nan
    half = student_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    middle = statistics.fmean(values)
    return middle - half, middle + half


def height(points: Sequence[Point], until: float) -> float:
    """Return the mean success over the tokens from 0 to `until`: the area below the curve; the last point holds from there on."""
    area, previous = 0.0, points[0]
    for point in points[1:]:
        stop = min(point["tokens"], until)
        if stop > previous["tokens"]:
            area += (overall(previous) + _at(points, stop)) / 2 * (stop - previous["tokens"])
        previous = point
    area += max(0.0, until - previous["tokens"]) * overall(previous)
    return area / until


def falls_behind(points: Sequence[Point], base: Sequence[Point]) -> bool:
    """Return whether a run is hopeless: its last points are all clearly below what the base has at the same tokens."""
    if len(points) <= PATIENCE or points[-1]["tokens"] < base[-1]["tokens"] / 3:
        return False
    for point in points[-PATIENCE:]:
        there = _at(base, point["tokens"])
        here, count = overall(point), sum(point["count"].values())
        error = math.sqrt((there * (1 - there) + here * (1 - here)) / count)
        if here > there - max(SIGMAS * error, 0.02):
            return False
    return True


def _at(points: Sequence[Point], tokens: float) -> float:
    """Return the success at so many tokens, in a straight line between points."""
    for before, after in itertools.pairwise(points):
        if before["tokens"] <= tokens < after["tokens"]:
            share = (tokens - before["tokens"]) / (after["tokens"] - before["tokens"])
            return overall(before) + share * (overall(after) - overall(before))
    return overall(points[-1])


def is_hopeless(base: Mapping[int, Sequence[Point]], arm: Mapping[int, Sequence[Point]]) -> bool:
    """Return whether no further seed can make an arm worth its tokens."""
    each = [ratio({s: base[s]}, {s: arm[s]}) for s in sorted(set(base) & set(arm))]
    known = [r for r in each if r is not None]
    if len(known) < HOPELESS_SEEDS:
        return False
    return all(r.missed or r.mean > HOPELESS_RATIO for r in known)
