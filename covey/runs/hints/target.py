"""The number that a run is really after: an evaluation metric that is not the reward, else the reward itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from covey.runs.hints.history import Floats, History, Trend, trend

_NOT_A_TARGET = re.compile(
    r"^(reward|rewards/|tasks/|loss|completions/|frac_reward|kl|entropy|clip_ratio|num_tokens|time/|step_time|runtime|"
    r"samples_per|steps_per|epoch|memory|sampling/|engine/|async/|curriculum/|constraints/|replay/|update/|learning_rate|grad_norm)|length|runtime|tokens|per_second|_se$|"
    r"/low$|/high$|count$"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A number that stands for success, and how it moved."""

    name: str
    trend: Trend


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """An evaluation metric over time."""

    name: str
    steps: list[int]
    values: Floats
    rows: int
    """Completions behind each value, the smallest count seen."""


def target_trend(history: History) -> Target | None:
    """Return how the target moved: from evaluations where there are four of a metric that is not the reward."""
    measured = [m for m in independent_metrics(history) if m.values.size >= 4]
    if measured:
        return Target(measured[0].name, trend(measured[0].values))
    moved = history.metrics.trend("reward")
    return None if moved is None else Target("reward", moved)


def independent_metrics(history: History) -> list[MetricCurve]:
    """Return every evaluation metric that is not the reward, a length, a time or a part of the loss."""
    found: dict[tuple[str, str], list[tuple[int, float, int]]] = {}
    for evaluation in history.evaluations:
        for name, value in evaluation.metrics.items():
            if not _NOT_A_TARGET.search(name) and value is not None:
                found.setdefault((evaluation.name, name), []).append(
                    (evaluation.step, value, evaluation.rows)
                )
    return [
        MetricCurve(
            f"{name} on {where}",
            [s for s, _, _ in v],
            np.asarray([x for _, x, _ in v]),
            min(r for *_, r in v),
        )
        for (where, name), v in found.items()
    ]
