"""Metrics of a scored batch beside the means of its rewards: one set of names per reward, and means per task."""

from __future__ import annotations

from collections.abc import Sequence

from covey.metrics import Mean, Metric
from covey.rewards.batch import RewardBatch, RewardTable
from covey.rewards.routing import groups_of


def mixture_metrics(
    table: RewardTable, batch: RewardBatch, task_column: str, tasks: Sequence[str]
) -> dict[str, Metric]:
    """Return rates and seconds of each reward, and its mean by task.

    `rewards/<name>/…`: `applicable_share` of all samples; `gated_share`, `error_share`, `timeout_share` and
    `cached_share` of those it applies to; `zero_std_share`, the groups in which it tells no two
    completions apart; `weight`; `mean/<task>`. `time/rewards/<name>`: seconds per batch.

    Args:
        tasks: those that are known from the start, so that the names are the same at every step.
    """
    metrics: dict[str, Metric] = {}
    groups, task_of_row = groups_of(batch), batch.columns.get(task_column) or ()
    for name, scores in table.scores.items():
        counts = table.counts[name]
        applicable = sum(score.status != "not_applicable" for score in scores)
        shares = {
            "gated_share": sum(score.status == "gated" for score in scores),
            "error_share": counts.num_errors,
            "timeout_share": counts.num_timeouts,
            "cached_share": counts.num_cached,
        }
        metrics |= {f"rewards/{name}/{key}": Mean(count, applicable) for key, count in shares.items()}
        metrics[f"rewards/{name}/applicable_share"] = Mean(applicable, len(batch))
        metrics[f"time/rewards/{name}"] = Mean(counts.seconds)
        values = [[v for row in rows if (v := scores[row].counted) is not None] for rows in groups]
        metrics[f"rewards/{name}/zero_std_share"] = Mean.of(
            float(min(group) == max(group)) for group in values if len(group) > 1
        )
        metrics[f"rewards/{name}/weight"] = Mean.of(table.weights[name])
    for name, scores in table.scores.items():
        for task in tasks:
            metrics[f"rewards/{name}/mean/{task}"] = Mean.of(
                score.value
                for score, found in zip(scores, task_of_row, strict=False)
                if found == task and score.value is not None
            )
    return metrics
