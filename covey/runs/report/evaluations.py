"""Evaluations with intervals and paired tests, from the rows that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.runs.accuracy import compare_prompts, estimate_reward
from covey.runs.record import schema, segments
from covey.runs.record.json_text import Json
from covey.runs.record.reader import read_evaluations
from covey.runs.report.curves import short

Outcomes = Mapping[int, Sequence[float]]
"""Values of a prompt's scored completions by dataset row; an evaluation asks each row once."""

TOTAL = "total"


class Evaluations:
    """The evaluations of a run: metrics, estimates by reward, and tests against the first, the previous and the best.

    Results are kept, so that a page that follows a run computes each evaluation once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._outcomes: dict[tuple[str, int, float], dict[str, Outcomes]] = {}
        self._entries: dict[tuple[str, int, float], Json] = {}

    def all(self) -> list[Json]:
        """Return every evaluation in the order in which they were recorded."""
        lines = read_evaluations(self.folder)
        # An evaluation that was repeated, for example after a resume, has another time.
        keys = [(line["name"], line["step"], line["time"]) for line in lines]
        self._outcomes |= {k: read_outcomes(self.folder, *k[:2]) for k in keys if k not in self._outcomes}
        for key, line in zip(keys, lines, strict=True):
            if key in self._entries:
                continue
            mine = self._outcomes[key]
            before = {k[1]: self._outcomes[k] for k in keys if k[0] == key[0] and k[1] < key[1]}
            self._entries[key] = {
                "name": line["name"],
                "step": line["step"],
                "rows": line["rows"],
                "metrics": {name: short(value) for name, value in line["metrics"].items()},
                "measured": {name: measured(outcomes) for name, outcomes in mine.items()},
                "tests": [test for name in mine for test in _tests(name, mine[name], before)],
            }
        return [self._entries[key] for key in keys]


def read_outcomes(folder: Path, name: str, step: int) -> dict[str, Outcomes]:
    """Return the outcomes of an evaluation by reward, `total` first; an empty dict where no rows were recorded."""
    path = folder / schema.EVALUATION_ROWS / schema.evaluation_file(name, step)
    if not path.exists():
        return {}
    table = segments.readable_segment(path)
    if table is None:
        return {}
    rows = table["row"].to_pylist()
    found: dict[str, Outcomes] = {}
    for column in (TOTAL, *(n for n in table.column_names if n.startswith("score/"))):
        by_row: dict[int, list[float]] = {}
        for row, value in zip(rows, table[column].to_pylist(), strict=True):
            if value is not None:
                by_row.setdefault(row, []).append(value)
        if by_row:
            found[column.removeprefix("score/")] = by_row
    return found


def measured(outcomes: Outcomes) -> Json:
    """Return the mean with its interval, and pass@k where outcomes are right or wrong and prompts have several."""
    found = estimate_reward(list(outcomes.values()))
    assert found is not None, "outcomes without a value are left out"
    interval = found.interval
    entry = {
        "mean": [short(interval.estimate), short(interval.low), short(interval.high)],
        "method": found.method,
        "prompts": found.prompts,
        "completions": found.completions,
    }
    if found.pass_at:
        entry["pass"] = {str(k): short(value) for k, value in found.pass_at.items()}
    return entry


def compare(before: Outcomes, after: Outcomes) -> Json:
    """Return a paired test on the prompts that both evaluations asked."""
    shared = sorted(set(before) & set(after))
    test = compare_prompts([before[row] for row in shared], [after[row] for row in shared]).test
    return {
        "difference": short(test.difference), "p": short(test.p_value), "pairs": test.pairs, "better": test.better,
        "worse": test.worse, "method": test.method,
    }  # fmt: skip


def _tests(reward: str, outcomes: Outcomes, before: Mapping[int, Mapping[str, Outcomes]]) -> list[Json]:
    """Test against the first and the previous evaluation, and the best so far by the same reward."""
    known = {step: found[reward] for step, found in before.items() if reward in found}
    if not known:
        return []
    means = {step: sum(map(sum, old.values())) / sum(map(len, old.values())) for step, old in known.items()}
    roles = {"first": min(known), "previous": max(known), "best": max(means, key=lambda step: means[step])}
    return [
        {
            "reward": reward,
            "against": step,
            "roles": [role for role, s in roles.items() if s == step],
            **compare(known[step], outcomes),
        }
        for step in dict.fromkeys(roles.values())
    ]
