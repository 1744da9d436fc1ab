"""Metrics of scored groups: totals, each reward alone, tasks, lengths and tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.metrics import Largest, Mean, Metric, Smallest, Spread, Total
from covey.score.advantages import has_spread
from covey.types import Group, ScoredGroup


def reward_metrics(scored: Sequence[ScoredGroup], names: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics of totals, of groups without spread, and of each reward, also where there is no group.

    Means of rewards are those of the policy: where groups grow, completions count by their shares.
    """
    by_group = [[t for t in s.totals if t is not None] for s in scored]
    counts = [share for s in scored for share in s.shares or (1.0,) * len(s.totals)]
    metrics: dict[str, Metric] = {
        "reward": _mean([t for s in scored for t in s.totals], counts),
        "reward_std": Mean.of(Spread.of(totals).value or 0.0 for totals in by_group),
        "frac_reward_zero_std": Mean.of(float(not has_spread(np.asarray(totals))) for totals in by_group),
        "reward/unscored": Mean.of(float(t is None) for s in scored for t in s.totals),
    }
    for name in names:
        column = [score for s in scored for score in s.scores[name]]
        metrics[f"rewards/{name}/mean"] = _mean([score.value for score in column], counts)
        metrics[f"rewards/{name}/std"] = Spread.of(score.value for score in column if score.value is not None)
        metrics[f"rewards/{name}/count"] = Total(sum(score.value is not None for score in column))
        metrics[f"rewards/{name}/failed"] = Mean.of(float(score.status == "failed") for score in column)
    return metrics


def task_metrics(scored: Sequence[ScoredGroup], column: str, tasks: Sequence[str] = ()) -> dict[str, Metric]:
    """Return mean reward and number of scored completions of each task, which a column of the row names.

    Args:
        tasks: those that are there although no row names them, without a measurement.
    """
    of_tasks: dict[str, list[ScoredGroup]] = {task: [] for task in tasks}
    for s in scored:
        task = s.group.prompt.columns.get(column)
        if task is not None:
            of_tasks.setdefault(str(task), []).append(s)
    metrics: dict[str, Metric] = {}
    for task, own in of_tasks.items():
        totals = [t for s in own for t in s.totals]
        counts = [share for s in own for share in s.shares or (1.0,) * len(s.totals)]
        metrics[f"tasks/{task}/reward"] = _mean(totals, counts)
        metrics[f"tasks/{task}/count"] = Total(sum(t is not None for t in totals))
    return metrics


def _mean(values: Sequence[float | None], counts: Sequence[float]) -> Mean:
    """Return the mean of the values that there are, each of which counts as `counts` says."""
    kept = [(value, count) for value, count in zip(values, counts, strict=True) if value is not None]
    return Mean.of([value for value, _ in kept], [count for _, count in kept])


def completion_metrics(groups: Sequence[Group]) -> dict[str, Metric]:
    """Return lengths in tokens that the policy wrote, and the share that hit a limit."""
    completions = [c for g in groups for c in g.completions]
    lengths = [c.num_written for c in completions]
    ended = [c.num_written for c in completions if not c.is_truncated]
    return {
        "completions/mean_length": Mean.of(lengths),
        "completions/min_length": Smallest.of(lengths),
        "completions/max_length": Largest.of(lengths),
        "completions/clipped_ratio": Mean.of(float(c.is_truncated) for c in completions),
        "completions/mean_terminated_length": Mean.of(ended),
        "completions/min_terminated_length": Smallest.of(ended),
        "completions/max_terminated_length": Largest.of(ended),
    }


def token_metrics(groups: Sequence[Group]) -> dict[str, Metric]:
    """Return the tokens of the prompts and those that the policy wrote, and the share of the prompts that had to be cut."""
    tokens = sum(len(g.prompt.ids) + c.opening + c.num_written for g in groups for c in g.completions)
    return {
        "num_tokens": Total(tokens),
        "prompts/cut_share": Mean.of(float(g.prompt.num_cut_tokens > 0) for g in groups),
    }
