"""Evaluations with intervals and paired tests, from the rows that were recorded.

Of every reward, and of the total, an evaluation has one value per completion. A prompt's value is the mean over its
completions; intervals and tests are over prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.runs.record import schema, segments
from covey.runs.record.reader import read_evaluations
from covey.runs.record.resume import evaluation_file
from covey.runs.report.curves import short
from covey.runs.statistics import (
    Interval,
    bootstrap_interval,
    paired_test,
    pass_at_k_interval,
    wilson_interval,
)

Outcomes = Mapping[int, Sequence[float]]
"""Values of a prompt's completions by dataset row."""

TOTAL = "total"


def resamples(prompts: int) -> int:
    """Fewer where there are many prompts, whose intervals are smooth anyway: a page is to be written in seconds."""
    return 2000 if prompts <= 300 else 500


@dataclass(frozen=True)
class Rows:
    """The outcomes of one evaluation by reward name; `total` is the weighted sum."""

    outcomes: Mapping[str, Outcomes]


class Evaluations:
    """The evaluations of a run: metrics, intervals by reward, and tests against the first, the previous and the best.

    What was computed once is kept, so that a page that follows a run computes each evaluation once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[tuple[str, int, float], Rows] = {}
        self._found: dict[tuple[str, int, float], dict[str, Any]] = {}

    def all(self) -> list[dict[str, Any]]:
        """Every evaluation in the order in which they were recorded."""
        lines = read_evaluations(self.folder)
        return [self._one(line, lines) for line in lines]

    def _one(self, line: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        key = _key(line)
        if key not in self._found:
            mine = self._rows_of(line)
            before = [
                other for other in lines if other["name"] == line["name"] and other["step"] < line["step"]
            ]
            self._found[key] = {
                "name": line["name"],
                "step": line["step"],
                "rows": line["rows"],
                "metrics": {name: short(value) for name, value in line["metrics"].items()},
                "measured": {name: measured(outcomes) for name, outcomes in mine.outcomes.items()},
                "tests": _tests(mine, {other["step"]: self._rows_of(other) for other in before}),
            }
        return self._found[key]

    def _rows_of(self, line: Mapping[str, Any]) -> Rows:
        key = _key(line)
        if key not in self._rows:
            self._rows[key] = read_rows(self.folder, line["name"], line["step"])
        return self._rows[key]


def _key(line: Mapping[str, Any]) -> tuple[str, int, float]:
    """An evaluation that was repeated, for example after a resume, has another time."""
    return line["name"], line["step"], line["time"]


def read_rows(folder: Path, name: str, step: int) -> Rows:
    """The outcomes of an evaluation; none where no rows were recorded."""
    path = folder / schema.EVALUATION_ROWS / evaluation_file(name, step)
    if not path.exists():
        return Rows({})
    table = segments.read_segment(path)
    prompts = table["row"].to_pylist()
    columns = {TOTAL: "total"} | {
        n.removeprefix("score/"): n for n in table.column_names if n.startswith("score/")
    }
    outcomes = {reward: _by_prompt(prompts, table[column].to_pylist()) for reward, column in columns.items()}
    return Rows({reward: values for reward, values in outcomes.items() if values})


def measured(outcomes: Outcomes) -> dict[str, Any]:
    """The mean with its interval, and pass@k where outcomes are right or wrong and prompts have several."""
    values = list(outcomes.values())
    size = min(map(len, values))
    is_binary = all(v in (0.0, 1.0) for column in values for v in column)
    if is_binary and max(map(len, values)) == 1:
        mean = wilson_interval(sum(column[0] for column in values), len(values))
        method = "Wilson"
    else:
        means = [sum(column) / len(column) for column in values]
        mean, method = bootstrap_interval(means, resamples=resamples(len(means))), "bootstrap over prompts"
    found = {
        "mean": _numbers(mean),
        "method": method,
        "prompts": len(values),
        "completions": sum(map(len, values)),
    }
    if is_binary and size > 1:
        powers = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < size] + [size]
        found["pass"] = {
            str(k): _numbers(pass_at_k_interval(values, k, resamples=resamples(len(values)))) for k in powers
        }
    return found


def compare(before: Outcomes, after: Outcomes) -> dict[str, Any]:
    """A paired test on the prompts that both evaluations asked."""
    shared = sorted(set(before) & set(after))
    a = [sum(before[row]) / len(before[row]) for row in shared]
    b = [sum(after[row]) / len(after[row]) for row in shared]
    result = paired_test(a, b, resamples=2 * resamples(len(a)))
    gap = bootstrap_interval(np.asarray(b) - np.asarray(a), resamples=resamples(len(a)))
    return {
        "difference": _numbers(gap), "p": short(result.p_value), "pairs": result.pairs, "better": result.better,
        "worse": result.worse, "method": result.method,
    }  # fmt: skip


def _tests(mine: Rows, before: Mapping[int, Rows]) -> list[dict[str, Any]]:
    """Against the first and the previous evaluation, and the best so far by the same reward."""
    found = []
    for reward, outcomes in mine.outcomes.items():
        known = {step: rows.outcomes[reward] for step, rows in before.items() if reward in rows.outcomes}
        if not known:
            continue
        best = max(known, key=lambda step: _mean(known[step]))
        for step in dict.fromkeys((min(known), max(known), best)):
            roles = [
                role
                for role, s in (("first", min(known)), ("previous", max(known)), ("best", best))
                if s == step
            ]
            found.append(
                {"reward": reward, "against": step, "roles": roles, **compare(known[step], outcomes)}
            )
    return found


def _by_prompt(prompts: Sequence[int], values: Sequence[float | None]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for row, value in zip(prompts, values, strict=True):
        if value is not None:
            found.setdefault(row, []).append(value)
    return found


def _mean(outcomes: Outcomes) -> float:
    return sum(sum(column) / len(column) for column in outcomes.values()) / len(outcomes)


def _numbers(interval: Interval) -> list[float | None]:
    return [short(interval.estimate), short(interval.low), short(interval.high)]
