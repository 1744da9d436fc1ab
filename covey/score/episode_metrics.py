"""Metrics of episodes: calls, failures, turns, ends, and what tools cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from covey.metrics import Largest, Mean, Metric, Rate
from covey.types import CallStatus, FinishReason, Group, ToolCall

SHARES: tuple[CallStatus, ...] = ("malformed", "timeout", "unknown")
"""Ways in which a call fails that are told apart."""


def episode_metrics(groups: Sequence[Group], names: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics of completions with tools, also where nothing was called.

    `tools/call_frequency` is calls that were answered over completions, `tools/failure_frequency` those that failed over
    calls, as other trainers log them; `tools/<name>/…` the same for one tool.

    Args:
        names: of the tools that there are.
    """
    completions = [c for g in groups for c in g.completions]
    called = [
        [call for t in c.turns or () for call in t.calls if call.status != "not_run"] for c in completions
    ]
    calls = [call for own in called for call in own]
    injected, ids = sum(len(c.ids) - c.num_written for c in completions), sum(len(c.ids) for c in completions)
    metrics: dict[str, Metric] = {
        "tools/call_frequency": Rate(len(calls), len(completions)),
        "tools/failure_frequency": Rate(sum(call.has_failed for call in calls), len(calls)),
        "tools/no_call_share": Mean.of(float(not own) for own in called),
        "episodes/turns/mean": Mean.of(len(c.turns or ()) for c in completions),
        "episodes/turns/max": Largest.of(len(c.turns or ()) for c in completions),
        "completions/injected_share": Rate(injected, ids),
        "time/tools": Mean.of([sum(call.seconds for call in calls)]),
    }
    for status in SHARES:
        metrics[f"tools/{status}_share"] = Rate(sum(call.status == status for call in calls), len(calls))
    for finish in get_args(FinishReason):
        metrics[f"episodes/ended/{finish}"] = Mean.of(float(c.finish == finish) for c in completions)
    for name in names:
        metrics |= tool_metrics(name, [call for call in calls if call.name == name], len(completions))
    return metrics


def tool_metrics(name: str, calls: Sequence[ToolCall], num_completions: int) -> dict[str, Metric]:
    """Return the metrics of one tool: calls for each completion, the share that failed, and seconds of a call."""
    return {
        f"tools/{name}/calls": Rate(len(calls), num_completions),
        f"tools/{name}/failed_share": Rate(sum(call.has_failed for call in calls), len(calls)),
        f"tools/{name}/seconds": Mean.of(call.seconds for call in calls),
    }
