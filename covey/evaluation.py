"""Sample and score, without an update: what evaluation is.

Nothing here touches a training state: the engine draws from its own random numbers, and metrics are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.groups import Group, Prompt
from covey.metrics import Metric, merge
from covey.sample.engine import Engine, in_order
from covey.sample.settings import Sampling
from covey.score.scorer import Scorer, completion_metrics, reward_metrics


def sample_and_score(
    engine: Engine,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    group_size: int,
    settings: Sampling,
    completions_per_call: int,
    trainer_state: Any = None,
) -> tuple[list[Group], dict[str, Metric]]:
    """Every prompt once, `group_size` completions each.

    Args:
        completions_per_call: completions that are sampled and scored together; at least one group is.

    Returns:
        The groups in the order of the prompts, and the sums of their metrics.
    """
    size = max(1, completions_per_call // group_size)
    groups: list[Group] = []
    metrics: dict[str, Metric] = {}
    for first in range(0, len(prompts), size):
        part = prompts[first : first + size]
        sampled = in_order(part, engine.generate(part, group_size, settings))
        table = scorer.table(sampled, trainer_state)
        metrics = merge(metrics, table.metrics, reward_metrics(table, sampled), completion_metrics(sampled))
        groups += sampled
    return groups, metrics
