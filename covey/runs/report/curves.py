"""The numbers of the steps as the page draws them: columns, rounded, thinned where there are very many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_POINTS = 2000
"""Points per curve. With more steps, each point is the mean of several."""

BANDS = {"reward": "reward", "completions/mean_length": "length"}
"""Metric → group statistics with its mean and standard error; rewards and tasks are added by name."""


def curves(
    lines: Sequence[Mapping[str, Any]], statistics: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    """Steps, metrics, standard errors with their degrees of freedom, and how many steps a point is.

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
        "errors": {
            metric: _errors(blocks, statistics, source)
            for metric, source in _bands(names).items()
            if any(f"{source}/se" in numbers for numbers in statistics.values())
        },
        "stride": stride,
    }


def _with_shares(line: Mapping[str, Any], numbers: Mapping[str, float]) -> dict[str, Any]:
    """A step with the share of each reward in the advantage, which only the groups tell."""
    shares = {name: value for name, value in numbers.items() if name.endswith("/advantage_share")}
    return {**line, "metrics": {**shares, **line["metrics"]}}


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


def _errors(
    blocks: Sequence[Sequence[Mapping[str, Any]]], statistics: Mapping[int, Mapping[str, float]], name: str
) -> dict[str, list[float | None]]:
    """Standard error and degrees of freedom of each point."""
    pairs = [_error(block, statistics, name) for block in blocks]
    return {"se": [short(se) for se, _ in pairs], "degrees": [short(degrees) for _, degrees in pairs]}


def _error(
    block: Sequence[Mapping[str, Any]], statistics: Mapping[int, Mapping[str, float]], name: str
) -> tuple[float | None, float | None]:
    """Of the mean of a block of steps: variances of independent means add up; degrees after Welch and Satterthwaite."""
    found = [statistics.get(line["step"], {}) for line in block]
    kept = [(n[f"{name}/se"], n[f"{name}/groups"] - 1) for n in found if n.get(f"{name}/groups", 0) > 1]
    if not kept:
        return None, None
    squares = math.fsum(se**2 for se, _ in kept)
    fourths = math.fsum(se**4 / degrees for se, degrees in kept)
    return math.sqrt(squares) / len(kept), squares**2 / fourths if fourths else math.fsum(d for _, d in kept)


def _mean(values: Iterable[float | None]) -> float | None:
    kept = [v for v in values if v is not None]
    return short(math.fsum(kept) / len(kept)) if kept else None
