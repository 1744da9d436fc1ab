"""The completions of a rollout on their way into micro-batches. No torch: weights are formulas of lengths and flags."""

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
    """Number of its group within the window."""
    in_loss: bool = True
    """False: its tokens do not enter the loss (a truncated completion that is masked)."""

    @property
    def num_loss_tokens(self) -> int:
        return sum(self.completion.loss_mask) if self.in_loss else 0


def samples_of(scored: Sequence[ScoredGroup], mask_truncated: bool = False) -> list[Sample]:
    """The completions of a window, flat, group after group."""
    return [
        Sample(s.group.prompt, c, a, number, in_loss=not (mask_truncated and c.is_truncated))
        for number, s in enumerate(scored)
        for c, a in zip(s.group.completions, s.advantages, strict=True)
    ]
