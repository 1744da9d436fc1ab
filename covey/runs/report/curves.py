"""The numbers of the steps as the page draws them: columns, rounded, thinned where there are very many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from covey.runs.record.schema import StepLine

MAX_POINTS = 2000
"""Points per curve. With more steps, each point is the mean of several."""

BANDS = {"reward": "reward", "completions/mean_length": "length"}
"""Metric → group statistics with its mean and standard error; rewards and tasks are added by name."""


def curves(lines: Sequence[StepLine], statistics: Mapping[int, Mapping[str, float]]) -> dict[str, object]:
    """Return steps, metrics, standard errors with their degrees of freedom, and how many steps a point is.

    Args:
        lines: the lines of the steps.
        statistics: group statistics by step.

    Missing values are None. All lists have one value per point.
    """
    stride = max(1, math.ceil(len(lines) / MAX_POINTS))
    blocks = [lines[i : i + stride] for i in range(0, len(lines), stride)]
    # The share of each reward in the advantage is known from the groups alone.
    metrics = [
        {n: v for n, v in statistics.get(line["step"], {}).items() if n.endswith("/advantage_share")}
        | line["metrics"]
        for line in lines
    ]
    names = list(dict.fromkeys(name for numbers in metrics for name in numbers))
    bands = {metric: source for metric, source in BANDS.items() if metric in names}
    for kind, ending in (("rewards/", "/mean"), ("tasks/", "/reward")):
        found = (n for n in names if n.startswith(kind) and n.endswith(ending))
        bands |= {name: name.removesuffix(ending) for name in found}
    return {
        "steps": [block[-1]["step"] for block in blocks],
        "times": [round(block[-1]["time"], 1) for block in blocks],
        "metrics": {
            name: [
                _mean([n.get(name) for n in metrics[i : i + stride]]) for i in range(0, len(lines), stride)
            ]
            for name in names
        },
        "errors": {
            metric: _errors(blocks, statistics, source)
            for metric, source in bands.items()
            if any(f"{source}/se" in numbers for numbers in statistics.values())
        },
        "stride": stride,
    }


def short(value: float | None) -> float | None:
    """Return six significant digits, which is more than a screen shows; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def _errors(
    blocks: Sequence[Sequence[StepLine]], statistics: Mapping[int, Mapping[str, float]], name: str
) -> dict[str, list[float | None]]:
    """Return standard error and degrees of freedom of the mean of each block of steps."""
    errors: list[float | None] = []
    degrees: list[float | None] = []
    for block in blocks:
        found = [statistics.get(line["step"], {}) for line in block]
        kept = [
            (n[f"{name}/se"], n[f"{name}/groups"] - 1)
            for n in found
            if (n.get(f"{name}/groups") or 0) > 1 and n.get(f"{name}/se") is not None
        ]
        if not kept:
            errors.append(None)
            degrees.append(None)
            continue
        # Variances of independent means add up; degrees of freedom after Welch and Satterthwaite.
        squares = math.fsum(se**2 for se, _ in kept)
        fourths = math.fsum(se**4 / d for se, d in kept)
        errors.append(short(math.sqrt(squares) / len(kept)))
        degrees.append(short(squares**2 / fourths if fourths else math.fsum(d for _, d in kept)))
    return {"se": errors, "degrees": degrees}


def _mean(values: Sequence[float | None]) -> float | None:
    kept = [v for v in values if v is not None]
    return short(math.fsum(kept) / len(kept)) if kept else None
