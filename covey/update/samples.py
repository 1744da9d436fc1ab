"""The completions of a rollout on their way into micro-batches, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from covey.types import Completion, Prompt, ScoredGroup


@dataclass
class Sample:
    """One completion on its way into a micro-batch."""

    prompt: Prompt
    completion: Completion
    advantage: float
    group: int
    """Number of its group within the rollout."""
    in_loss: bool = True
    """False: its tokens do not enter the loss (a truncated completion that is masked)."""


def samples_of(scored: Sequence[ScoredGroup], mask_truncated: bool = False) -> list[Sample]:
    """Return the completions of a rollout, flat, group after group.

    Args:
        mask_truncated: whether truncated completions stay out of the loss.
    """
    return [
        Sample(s.group.prompt, c, a, number, in_loss=not (mask_truncated and c.is_truncated))
        for number, s in enumerate(scored)
        for c, a in zip(s.group.completions, s.advantages, strict=True)
    ]
