"""The numbers of the steps as the page draws them: columns, rounded, thinned where there are very many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from covey.runs.statistics import student_quantile

MAX_POINTS = 2000
"""Points per curve. With more steps, each point is the mean of several."""

BANDS = {"reward": "reward", "completions/mean_length": "length"}
"""Metric → group statistics with its mean and standard error; rewards and tasks are added by name."""


def curves(
    lines: Sequence[Mapping[str, Any]], statistics: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    """Steps, metrics, half-widths of 95 % intervals where there are group statistics, and how many steps a point is.

    Args:
        lines: the lines of the steps.
        statistics: group statistics by step.

    Missing values are None. All lists have one value per point.
    """
    stride = max(1, math.ceil(len(lines) / MAX_POINTS))
    lines = [_with_shares(line, statistics.get(line["step"], {})) for line in lines]
    blocks = [lines[i : i + stride] for i in range(0, len(lines), stride)]
    names = list(dict.fromkeys(name for line in lines for name in line["metrics"]))
    return {
        "steps": [block[-1]["step"] for block in blocks],
        "times": [round(block[-1]["time"], 1) for block in blocks],
        "metrics": {
            name: [_mean(line["metrics"].get(name) for line in block) for block in blocks] for name in names
        },
        "halves": {
            metric: [_half(block, statistics, source) for block in blocks]
            for metric, source in _bands(names).items()
            if any(f"{source}/se" in numbers for numbers in statistics.values())
        },
        "stride": stride,
    }


def _with_shares(line: Mapping[str, Any], numbers: Mapping[str, float]) -> dict[str, Any]:
    """A step with the share of each reward in the advantage, which only the groups tell."""
    shares = {name: value for name, value in numbers.items() if name.endswith("/advantage_share")}
    return {**line, "metrics": {**shares, **line["metrics"]}}


def half_width(numbers: Mapping[str, float], name: str) -> float | None:
    """Half of the 95 % interval of a mean over the groups of one step; None where one cannot tell."""
    error, groups = numbers.get(f"{name}/se"), int(numbers.get(f"{name}/groups", 0))
    return None if error is None or groups < 2 else student_quantile(0.975, groups - 1) * error


def short(value: float | None) -> float | None:
    """Six significant digits, which is more than a screen shows."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def _bands(names: Sequence[str]) -> dict[str, str]:
    bands = {metric: source for metric, source in BANDS.items() if metric in names}
    bands |= {n: n.removesuffix("/mean") for n in names if n.startswith("rewards/") and n.endswith("/mean")}
    return bands | {
        n: n.removesuffix("/reward") for n in names if n.startswith("tasks/") and n.endswith("/reward")
    }


def _half(
    block: Sequence[Mapping[str, Any]], statistics: Mapping[int, Mapping[str, float]], name: str
) -> float | None:
    """Half-width for the mean of a block of steps: those of independent means add up in squares."""
    halves = [half_width(statistics.get(line["step"], {}), name) for line in block]
    kept = [h for h in halves if h is not None]
    return short(math.sqrt(math.fsum(h * h for h in kept)) / len(kept)) if kept else None


def _mean(values: Iterable[float | None]) -> float | None:
    kept = [v for v in values if v is not None]
    return short(math.fsum(kept) / len(kept)) if kept else None
