"""What groups are counted by, beside their rewards: lengths, tokens, tasks."""

from __future__ import annotations

from collections.abc import Sequence

from covey.metrics import Largest, Mean, Metric, Smallest, Total
from covey.types import Group, ScoredGroup


def task_metrics(scored: Sequence[ScoredGroup], column: str) -> dict[str, Metric]:
    """Mean reward and number of scored completions of each task; a row's task is what its column holds."""
    totals: dict[str, list[float]] = {}
    for s in scored:
        task = s.group.prompt.columns.get(column)
        if task is not None:
            totals.setdefault(str(task), []).extend(t for t in s.totals if t is not None)
    metrics: dict[str, Metric] = {}
    for task, values in totals.items():
        metrics[f"tasks/{task}/reward"] = Mean.of(values)
        metrics[f"tasks/{task}/count"] = Total(len(values))
    return metrics


def no_task_metrics(tasks: Sequence[str]) -> dict[str, Metric]:
    """The names of `task_metrics`, without a measurement, so that the keys are there from the first step on."""
    rewards: dict[str, Metric] = {f"tasks/{task}/reward": Mean(0.0, 0.0) for task in tasks}
    return rewards | {f"tasks/{task}/count": Total(0) for task in tasks}


def completion_metrics(groups: Sequence[Group]) -> dict[str, Metric]:
    """Lengths as generated, in tokens, and the share that hit the limit."""
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
    """Tokens read and written, and the share of the prompts that had to be cut."""
    tokens = sum(len(g.prompt.ids) + len(c.ids) for g in groups for c in g.completions)
    return {
        "num_tokens": Total(tokens),
        "prompts/cut_share": Mean.of(float(g.prompt.num_cut_tokens > 0) for g in groups),
    }
