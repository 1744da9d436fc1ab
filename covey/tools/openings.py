"""Members of a group that start differently: what they have in common is the group's prompt, the rest opens each of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from covey.types import Completion, Turn


def common_start(several: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the longest start that all have in common."""
    same = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*several, strict=False))
    return tuple(column[0] for column in same)


def with_opening(completion: Completion, opening: tuple[int, ...]) -> Completion:
    """Return a completion with ids of its own prompt before it."""
    if not opening:
        return completion
    return replace(
        completion,
        ids=opening + completion.ids,
        logprobs=(0.0,) * len(opening) + completion.logprobs,
        written=(False,) * len(opening) + completion.loss_mask,
        policy_logprobs=None
        if completion.policy_logprobs is None
        else (0.0,) * len(opening) + completion.policy_logprobs,
        opening=len(opening) + completion.opening,
        turns=None if completion.turns is None else tuple(moved(t, len(opening)) for t in completion.turns),
    )


def moved(turn: Turn, by: int) -> Turn:
    """Return a turn whose ids stand so many places further on."""
    return replace(turn, start=turn.start + by, stop=turn.stop + by, end=turn.end + by)
