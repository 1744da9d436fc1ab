"""Tries a mixture out before a run: which rows are scored, what right answers get, what attacks get, how long it takes.

No GPU and no trainer. Completions come from a file, from a function that samples them, or are made up: right answers, and
right answers of other rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.errors import DatasetError
from covey.rewards.check import probes
from covey.rewards.check.golds import gold_completions, like_prompt
from covey.rewards.check.report import CheckReport, RewardStatistics
from covey.rewards.check.trial import Sample, Trial
from covey.rewards.mixture import Mixture, as_rewards
from covey.types import PromptContent

Row = Mapping[str, Any]
Sampler = Callable[[Sequence[PromptContent], int], Sequence[Sequence[PromptContent]]]
"""Prompts and a number → that many completions of each."""


def check_rewards(
    rewards: Any,
    dataset: Iterable[Row],
    *,
    num_rows: int = 64,
    completions: str | Path | None = None,
    sample: Sampler | None = None,
    group_size: int = 4,
) -> CheckReport:
    """Check rewards over a slice of a dataset.

    Args:
        rewards: a mixture, a reward, or a list of them.
        dataset: rows with a `prompt` and the columns that rewards look at; a list or a dataset.
        num_rows: rows looked at, spread evenly over a dataset that has a length, else the first ones.
        completions: a file of JSON lines, each with `completion` and the `prompt` or the `row` that it belongs to.
        sample: samples completions; `group_size` per prompt.

    Raises:
        DatasetError: no rows, or completions that belong to none of them.
    """
    mixture = as_rewards(rewards)
    rows = spread_rows(dataset, num_rows)
    if not rows:
        raise DatasetError("There are no rows to check rewards on.")
    report = CheckReport(len(rows), "file" if completions else "model" if sample else "stubs")
    missing = _check_columns(mixture, rows, report)
    trials = [Trial(reward, mixture.task_column) for reward in mixture if reward.name not in missing]
    samples = _samples(trials, rows, completions, sample, group_size)
    scored: set[int] = set()
    for trial in trials:
        scored |= _check_one(
            trial, rows, samples, report, mixture.task_column, are_real=report.source != "stubs"
        )
    _check_coverage(mixture, rows, scored, report, bool(missing))
    return report


def _check_columns(mixture: Mixture, rows: Sequence[Row], report: CheckReport) -> set[str]:
    """Names of the rewards whose columns are not there."""
    columns = {name for row in rows for name in row}
    lacking = set()
    for reward in mixture:
        missing = reward.missing_columns(columns)
        if missing:
            lacking.add(reward.name)
            has = ", ".join(sorted(columns))
            report.add(
                "error",
                reward.name,
                "columns",
                f"needs the column {', '.join(missing)}; the rows have {has}.",
            )
    return lacking


def _check_one(
    trial: Trial,
    rows: Sequence[Row],
    samples: Sequence[Sample],
    report: CheckReport,
    task_column: str,
    are_real: bool,
) -> set[int]:
    """All checks of one reward; the rows that it scores."""
    statistics = report.rewards[trial.reward.name] = RewardStatistics()
    routed = [row for row, kept in zip(rows, trial.applies(rows), strict=True) if kept]
    own = [sample for sample in samples if any(sample[0] is row for row in routed)]
    outcomes = probes.check_values(trial, own, report, are_real)
    said = {
        id(row)
        for (row, _), outcome in zip(own, outcomes, strict=True)
        if outcome.value is not None or outcome.fault
    }
    scoring = [row for row in routed if id(row) in said]
    statistics.num_rows = len(scoring)
    statistics.rows_by_task = dict(
        Counter(str(row.get(task_column)) for row in scoring if row.get(task_column) is not None)
    )
    if not scoring:
        report.add("warning", trial.reward.name, "applies", "applies to none of the rows.")
        return set()
    some = [i for i, (row, _) in enumerate(own) if id(row) in said][: probes.MAX_SAMPLES]
    few, first = [own[i] for i in some], [outcomes[i] for i in some]
    probes.check_golds(trial, scoring, report)
    if trial.reward.options.scope == "sample":
        first = trial.outcomes(few)
        probes.check_repeat(trial, few, first, report)
        probes.check_order(trial, few, first, report)
        probes.check_threads(trial, few, first, report)
    probes.check_latency(trial, few, report)
    probes.check_attacks(trial, scoring, report)
    return said


def _check_coverage(
    mixture: Mixture, rows: Sequence[Row], scored: set[int], report: CheckReport, is_partial: bool
) -> None:
    unscored = [row for row in rows if id(row) not in scored]
    if not unscored or mixture.unscored == "ignore":
        return
    tasks = Counter(str(row.get(mixture.task_column, "no task")) for row in unscored)
    by_task = ", ".join(f"{task}: {count}" for task, count in tasks.most_common(5))
    why = ", also because rewards lack their columns" if is_partial else ""
    report.add(
        "error",
        "",
        "coverage",
        f"{len(unscored)} of {len(rows)} rows are scored by nothing{why} ({by_task}).",
    )


def _samples(
    trials: Sequence[Trial],
    rows: Sequence[Row],
    file: str | Path | None,
    sample: Sampler | None,
    group_size: int,
) -> list[Sample]:
    if file is not None:
        return read_completions(file, rows)
    if sample is not None:
        groups = sample([row["prompt"] for row in rows], group_size)
        return [(row, completion) for row, group in zip(rows, groups, strict=True) for completion in group]
    return [
        (row, like_prompt(row["prompt"], text))
        for i, row in enumerate(rows)
        for text in _stubs(trials, rows, i)
    ]


def _stubs(trials: Sequence[Trial], rows: Sequence[Row], number: int) -> list[str]:
    """The row's right answer in the forms that the rewards may want, another row's, and an ordinary wrong one."""
    own = [text for trial in trials for text in gold_completions(trial.reward, rows[number])[:1]]
    other = [text for trial in trials for text in gold_completions(trial.reward, rows[number - 1])[:1]]
    return list(dict.fromkeys([*own, *other, "<think>\nI do not know.\n</think>\n<answer>nothing</answer>"]))


def spread_rows(dataset: Iterable[Row], num_rows: int) -> list[Row]:
    """Rows spread evenly over a dataset that has a length; else the first ones."""
    indexed: Any = dataset
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        size = len(indexed)
        places = [size * i // num_rows for i in range(num_rows)] if size > num_rows else range(size)
        return [dict(indexed[place]) for place in places]
    return [dict(row) for row, _ in zip(dataset, range(num_rows), strict=False)]


def read_completions(path: str | Path, rows: Sequence[Row]) -> list[Sample]:
    """Completions of a file of JSON lines, each with its row: by number (`row`), or by the same `prompt`.

    Raises:
        DatasetError: a line that cannot be read, or none that belongs to a row.
    """
    by_prompt = {json.dumps(row["prompt"], sort_keys=True, default=str): row for row in reversed(rows)}
    places = {id(row): place for place, row in enumerate(rows)}
    samples: list[tuple[int, Sample]] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            completion = entry["completion"]
        except (ValueError, KeyError, TypeError) as error:
            raise DatasetError(
                f"{path}, line {number}: no JSON object with a `completion` ({error!r})."
            ) from None
        row = _row_of(entry, rows, by_prompt)
        if row is not None:
            samples.append((places[id(row)], (row, completion)))
    if not samples:
        raise DatasetError(
            f"{path}: no completion belongs to one of the {len(rows)} rows, by `row` or by `prompt`."
        )
    return [sample for _, sample in sorted(samples, key=lambda pair: pair[0])]


def _row_of(entry: Mapping[str, Any], rows: Sequence[Row], by_prompt: Mapping[str, Row]) -> Row | None:
    number = entry.get("row")
    if isinstance(number, int):
        return rows[number] if 0 <= number < len(rows) else None
    return by_prompt.get(json.dumps(entry.get("prompt"), sort_keys=True, default=str))
