"""Check of a mixture before a run: rows that are scored, values of right answers and of attacks, seconds.

No GPU and no trainer. Completions come from a file, from a function that samples them, or are made up: right answers, and
right answers of other rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

from covey.errors import DatasetError
from covey.rewards.check import probes
from covey.rewards.check.golds import gold_completions, like_prompt
from covey.rewards.check.report import CheckReport, RewardStatistics
from covey.rewards.check.trial import Sample, Trial
from covey.rewards.contract import RewardFunction
from covey.rewards.mixture import as_rewards
from covey.rewards.options import Row
from covey.types import PromptContent

Sampler = Callable[[Sequence[Row], int], Sequence[Sequence[PromptContent]]]
"""Rows and a number → that many completions of the prompt of each."""


def check_rewards(
    rewards: RewardFunction | list[RewardFunction],
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
        sample: rows, `group_size` → that many completions of the prompt of each row.

    Raises:
        DatasetError: no rows, or completions that belong to none of them.
    """
    mixture, rows = as_rewards(rewards), spread_rows(dataset, num_rows)
    if not rows:
        raise DatasetError("There are no rows to check rewards on.")
    report = CheckReport(len(rows), "file" if completions else "model" if sample else "stubs")
    columns = {name for row in rows for name in row}
    trials = []
    for reward in mixture:
        missing = reward.missing_columns(columns)
        if missing:
            text = f"needs the column {', '.join(missing)}; the rows have {', '.join(sorted(columns))}."
            report.add("error", reward.name, "columns", text)
        else:
            trials.append(Trial(reward, mixture.task_column))
    if completions is not None:
        samples = read_completions(completions, rows)
    else:
        samples = _samples(trials, rows, sample, group_size)
    scored: set[int] = set()
    for trial in trials:
        scored |= _check_one(trial, rows, samples, report)

    unscored = [row for row in rows if id(row) not in scored]
    if unscored and mixture.unscored != "ignore":
        tasks = Counter(str(row.get(mixture.task_column, "no task")) for row in unscored)
        by_task = ", ".join(f"{task}: {count}" for task, count in tasks.most_common(5))
        why = ", also because rewards lack their columns" if len(trials) < len(mixture) else ""
        text = f"{len(unscored)} of {len(rows)} rows are scored by nothing{why} ({by_task})."
        report.add("error", "", "coverage", text)
    return report


def _check_one(trial: Trial, rows: Sequence[Row], samples: Sequence[Sample], report: CheckReport) -> set[int]:
    """Run all checks of one reward; return the ids of the rows that it scores."""
    statistics = report.rewards[trial.reward.name] = RewardStatistics()
    routed = [row for row, kept in zip(rows, trial.applies(rows), strict=True) if kept]
    own = [sample for sample in samples if any(sample[0] is row for row in routed)]
    outcomes = probes.check_values(trial, own, report, are_real=report.source != "stubs")
    scored = {
        id(row)
        for (row, _), outcome in zip(own, outcomes, strict=True)
        if outcome.value is not None or outcome.fault
    }
    scoring = [row for row in routed if id(row) in scored]
    statistics.num_rows = len(scoring)
    tasks = [row.get(trial.task_column) for row in scoring]
    statistics.rows_by_task = dict(Counter(str(task) for task in tasks if task is not None))
    if not scoring:
        report.add("warning", trial.reward.name, "applies", "applies to none of the rows.")
        return set()

    few = [sample for sample in own if id(sample[0]) in scored][: probes.MAX_SAMPLES]
    probes.check_golds(trial, scoring, report)
    if trial.reward.options.scope == "sample":
        first = trial.outcomes(few)
        probes.check_repeat(trial, few, first, report)
        probes.check_order(trial, few, first, report)
        probes.check_threads(trial, few, first, report)
    probes.check_latency(trial, few, report)
    probes.check_attacks(trial, scoring, report)
    return scored


def _samples(
    trials: Sequence[Trial], rows: Sequence[Row], sample: Sampler | None, group_size: int
) -> list[Sample]:
    """Return completions with their rows: sampled, or made up.

    Made up are the row's right answer in the forms that the rewards may want, another row's, and an ordinary wrong one.
    """
    if sample is not None:
        groups = sample(rows, group_size)
        return [(row, completion) for row, group in zip(rows, groups, strict=True) for completion in group]

    golds = [[text for t in trials for text in gold_completions(t.reward, row)[:1]] for row in rows]
    wrong = "<think>\nI do not know.\n</think>\n<answer>nothing</answer>"
    return [
        (row, like_prompt(row["prompt"], text))
        for i, row in enumerate(rows)
        for text in dict.fromkeys([*golds[i], *golds[i - 1], wrong])
    ]


def spread_rows(dataset: Iterable[Row], num_rows: int) -> list[Row]:
    """Return rows spread evenly over a dataset that has a length; else the first ones."""
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        indexed = cast(Sequence[Row], dataset)
        size = len(indexed)
        places = [size * i // num_rows for i in range(num_rows)] if size > num_rows else range(size)
        return [dict(indexed[place]) for place in places]
    return [dict(row) for row, _ in zip(dataset, range(num_rows), strict=False)]


def read_completions(path: str | Path, rows: Sequence[Row]) -> list[Sample]:
    """Read completions from a file of JSON lines, each with its row: by number (`row`), or by the same `prompt`.

    Raises:
        DatasetError: a line that cannot be read, or none that belongs to a row.
    """
    number_of = {
        json.dumps(rows[i]["prompt"], sort_keys=True, default=str): i for i in reversed(range(len(rows)))
    }
    samples: list[tuple[int, Sample]] = []
    for line_number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            completion = entry["completion"]
        except (ValueError, KeyError, TypeError) as error:
            raise DatasetError(
                f"{path}, line {line_number}: no JSON object with a `completion` ({error!r})."
            ) from None
        number = entry.get("row")
        if not isinstance(number, int):
            number = number_of.get(json.dumps(entry.get("prompt"), sort_keys=True, default=str), -1)
        if 0 <= number < len(rows):
            samples.append((number, (rows[number], completion)))
    if not samples:
        raise DatasetError(
            f"{path}: no completion belongs to one of the {len(rows)} rows, by `row` or by `prompt`."
        )
    return [sample for _, sample in sorted(samples, key=lambda pair: pair[0])]
