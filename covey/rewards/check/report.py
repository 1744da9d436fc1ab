"""Findings of a check: for people a table, for machines a dictionary, for CI an exit code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from covey.text.foreign import excerpt

Severity = Literal["error", "warning", "note"]
MARKS = {"error": "✗", "warning": "!", "note": "·"}
MAX_TEXT, MAX_NAME = 4_000, 60
"""Characters of a finding, and of a reward's name, that are shown."""


@dataclass(frozen=True)
class CheckFinding:
    """One thing worth knowing before a run."""

    severity: Severity
    reward: str
    """Its name; empty where it concerns all."""
    check: str
    """Short name of the check that found it, for machines."""
    text: str


@dataclass
class RewardStatistics:
    """Values and times of one reward over the completions that it was shown."""

    num_rows: int = 0
    """Rows that it applies to."""
    rows_by_task: dict[str, int] = field(default_factory=dict)
    lowest: float | None = None
    highest: float | None = None
    mean: float | None = None
    std: float | None = None
    gold_share: float | None = None
    """Share of rows whose right answer gets full marks, among those that have one."""
    seconds_p50: float | None = None
    seconds_p95: float | None = None
    seconds_max: float | None = None


@dataclass
class CheckReport:
    """Findings, and statistics by reward."""

    num_rows: int
    source: str
    """The origin of the completions: `stubs`, `file` or `model`."""
    findings: list[CheckFinding] = field(default_factory=list)
    rewards: dict[str, RewardStatistics] = field(default_factory=dict)

    def add(self, severity: Severity, reward: str, check: str, text: str) -> None:
        """Note a finding; what its text quotes of completions is shown on one line."""
        self.findings.append(CheckFinding(severity, reward, check, excerpt(text, MAX_TEXT)))

    @property
    def errors(self) -> list[CheckFinding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def exit_code(self) -> int:
        """0: nothing stands in the way of a run; 1: an error does."""
        return 1 if self.errors else 0

    def as_dict(self) -> dict[str, object]:
        return {
            "num_rows": self.num_rows,
            "source": self.source,
            "exit_code": self.exit_code,
            "findings": [asdict(finding) for finding in self.findings],
            "rewards": {name: asdict(statistics) for name, statistics in self.rewards.items()},
        }

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        header = ("reward", "rows", "range", "mean", "std", "gold", "ms p50", "p95", "max")
        rows = [header, *(_cells(name, statistics) for name, statistics in self.rewards.items())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        table = "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )
        order = sorted(self.findings, key=lambda f: list(MARKS).index(f.severity))
        found = "\n".join(
            f"{MARKS[f.severity]} {f'{excerpt(f.reward, MAX_NAME)}: ' if f.reward else ''}{f.text}"
            for f in order
        )
        counts = {mark: sum(f.severity == mark for f in self.findings) for mark in MARKS}
        end = f"{counts['error']} errors, {counts['warning']} warnings, {counts['note']} notes"
        head = f"{self.num_rows} rows, completions from {self.source}"
        return f"{head}\n\n{table}\n\n{found or 'Nothing found.'}\n\n{end}"


def _cells(name: str, statistics: RewardStatistics) -> tuple[str, ...]:
    reach = "–" if statistics.lowest is None else f"{statistics.lowest:.3g} … {statistics.highest:.3g}"
    times = (statistics.seconds_p50, statistics.seconds_p95, statistics.seconds_max)
    gold = "–" if statistics.gold_share is None else f"{statistics.gold_share:.0%}"
    return (
        excerpt(name, MAX_NAME),
        str(statistics.num_rows),
        reach,
        _number(statistics.mean),
        _number(statistics.std),
        gold,
        *("–" if t is None else f"{1e3 * t:.3g}" for t in times),
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
