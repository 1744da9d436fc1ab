"""Metrics of scored groups: totals, each reward alone, tasks, lengths and tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.metrics import Largest, Mean, Metric, Smallest, Spread, Total
from covey.score.advantages import has_spread
from covey.types import Group, ScoredGroup


def reward_metrics(scored: Sequence[ScoredGroup], names: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics of totals, of groups without spread, and of each reward, also where there is no group."""
    by_group = [[t for t in s.totals if t is not None] for s in scored]
    metrics: dict[str, Metric] = {
        "reward": Mean.of(t for totals in by_group for t in totals),
        "reward_std": Mean.of(Spread.of(totals).value or 0.0 for totals in by_group),
        "frac_reward_zero_std": Mean.of(float(not has_spread(np.asarray(totals))) for totals in by_group),
        "reward/unscored": Mean.of(float(t is None) for s in scored for t in s.totals),
    }
    for name in names:
        column = [score for s in scored for score in s.scores[name]]
        values = [score.value for score in column if score.value is not None]
        metrics[f"rewards/{name}/mean"] = Mean.of(values)
        metrics[f"rewards/{name}/std"] = Spread.of(values)
        metrics[f"rewards/{name}/count"] = Total(len(values))
        metrics[f"rewards/{name}/failed"] = Mean.of(float(score.status == "failed") for score in column)
    return metrics


def task_metrics(scored: Sequence[ScoredGroup], column: str, tasks: Sequence[str] = ()) -> dict[str, Metric]:
    """Return mean reward and number of scored completions of each task, which a column of the row names.

    Args:
        tasks: those that are there although no row names them, without a measurement.
    """
    totals: dict[str, list[float]] = {task: [] for task in tasks}
    for s in scored:
        task = s.group.prompt.columns.get(column)
        if task is not None:
            totals.setdefault(str(task), []).extend(t for t in s.totals if t is not None)
    metrics: dict[str, Metric] = {f"tasks/{task}/reward": Mean.of(totals[task]) for task in totals}
    return metrics | {f"tasks/{task}/count": Total(len(totals[task])) for task in totals}


def completion_metrics(groups: Sequence[Group]) -> dict[str, Metric]:
    """Return lengths as generated, in tokens, and the share that hit the limit."""
    completions = [c for g in groups for c in g.completions]
    lengths = [len(c.ids) for c in completions]
    ended = [len(c.ids) for c in completions if not c.is_truncated]
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
    """Return the number of tokens read and written, and the share of the prompts that had to be cut."""
    tokens = sum(len(g.prompt.ids) + len(c.ids) for g in groups for c in g.completions)
    return {
        "num_tokens": Total(tokens),
        "prompts/cut_share": Mean.of(float(g.prompt.num_cut_tokens > 0) for g in groups),
    }
