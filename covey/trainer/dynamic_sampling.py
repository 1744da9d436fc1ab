"""Dynamic sampling: groups without a signal are replaced by fresh prompts, up to a limit (DAPO, arXiv:2503.14476, 3.2).

Departure: an optimizer step always has the number of groups that the plan says. What is still without a signal when the
limit is reached stays, with advantages of 0, and counts in the denominators as it would without dynamic sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from covey.metrics import Mean, Metric
from covey.types import Prompt, ScoredGroup


def refilled(
    scored: Sequence[ScoredGroup],
    has_signal: Callable[[ScoredGroup], bool],
    reserve: Sequence[Prompt],
    limit: int,
    attempt: Callable[[Sequence[Prompt]], list[ScoredGroup]],
    gather: Callable[[Any], list[Any]],
) -> tuple[list[ScoredGroup], dict[str, Metric]]:
    """The groups of this process, those without a signal replaced as far as fresh prompts gave some.

    Args:
        scored: in the order in which they are trained on.
        has_signal: whether a group teaches something.
        reserve: fresh prompts, taken from the front.
        limit: rounds at most.
        attempt: samples prompts and runs the rewards; every process calls it in every round, maybe with none.
        gather: every process's value: rounds go on while any process misses a group.

    Returns:
        As many groups as were given, and metrics.
    """
    groups, rounds, used = list(scored), 0, 0
    signals = [has_signal(g) for g in groups]
    before = sum(signals)
    while rounds < limit:
        missing = [i for i, signal in enumerate(signals) if not signal]
        if not any(gather(len(missing))):
            break
        prompts = reserve[used : used + len(missing)]
        rounds, used = rounds + 1, used + len(prompts)
        useful = [g for g in attempt(prompts) if has_signal(g)]
        for position, group in zip(missing, useful, strict=False):
            groups[position], signals[position] = group, True
    return groups, {
        "dynamic_sampling/signal_share": Mean(before, len(groups)),
        "dynamic_sampling/replaced_share": Mean(sum(signals) - before, len(groups)),
        "dynamic_sampling/rounds": Mean(rounds),
    }
