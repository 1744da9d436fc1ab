"""What a batch says about its rewards, beside their means: one set of names per reward, and means per task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.metrics import Mean, Metric
from covey.rewards.batch import RewardBatch, RewardTable
from covey.rewards.routing import groups_of
from covey.rewards.score_batch import Column


def mixture_metrics(
    columns: dict[str, Column], table: RewardTable, batch: RewardBatch, task_column: str, tasks: Sequence[str]
) -> dict[str, Metric]:
    """Rates and seconds of each reward, and its mean by task.

    `rewards/<name>/…`: `applicable_share` of all samples; `gated_share`, `error_share`, `timeout_share` and
    `cached_share` of those it applies to; `zero_std_share`, the groups in which it tells no two
    completions apart; `weight`; `mean/<task>`. `time/rewards/<name>`: seconds per batch.
    """
    metrics: dict[str, Metric] = {}
    groups = groups_of(batch)
    for name, column in columns.items():
        applicable = sum(score.status != "not_applicable" for score in column.scores)
        shares = {
            "gated_share": sum(score.status == "gated" for score in column.scores),
            "error_share": column.num_errors,
            "timeout_share": column.num_timeouts,
            "cached_share": column.num_cached,
        }
        metrics |= {f"rewards/{name}/{key}": Mean(count, applicable) for key, count in shares.items()}
        metrics[f"rewards/{name}/applicable_share"] = Mean(applicable, len(batch))
        metrics[f"time/rewards/{name}"] = Mean(column.seconds)
        metrics[f"rewards/{name}/zero_std_share"] = _without_spread(name, table, groups)
        metrics[f"rewards/{name}/weight"] = Mean.of(table.weight(name, row) for row in range(len(batch)))
    return metrics | _means_by_task(table, batch.columns.get(task_column), tasks)


def _without_spread(name: str, table: RewardTable, groups: Sequence[Sequence[int]]) -> Metric:
    """Share of groups, among those with two values or more, in which all values are equal."""
    kept = [[v for row in rows if (v := table.value(name, row)) is not None] for rows in groups]
    return Mean.of(float(min(values) == max(values)) for values in kept if len(values) > 1)


def _means_by_task(
    table: RewardTable, column: Sequence[Any] | None, tasks: Sequence[str]
) -> dict[str, Metric]:
    """For the tasks that are known from the start, so that the names are the same at every step."""
    return {
        f"rewards/{name}/mean/{task}": Mean.of(
            score.value
            for score, found in zip(scores, column or (), strict=False)
            if found == task and score.value is not None
        )
        for name, scores in table.scores.items()
        for task in tasks
    }
