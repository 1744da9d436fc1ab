"""The completions of a rollout on their way into micro-batches, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from covey.metrics import Mean, Metrics
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
    turn_advantages: tuple[float, ...] | None = None
    """One advantage per turn; None: `advantage` is that of every token."""
    share: float = 1.0
    """What it counts in sums over completions, where groups are of different sizes."""

    @property
    def has_advantage(self) -> bool:
        """Whether any of its tokens has an advantage that is not 0."""
        return any(self.turn_advantages) if self.turn_advantages is not None else self.advantage != 0

    @property
    def size(self) -> float:
        """The absolute advantage of its tokens in the loss, summed."""
        if self.turn_advantages is None:
            return abs(self.advantage) * self.completion.num_written
        each = zip(self.token_advantages, self.completion.loss_mask, strict=True)
        return sum(abs(a) for a, kept in each if kept)

    @property
    def token_advantages(self) -> list[float]:
        """The advantage of each id; 0 for ids that the policy did not write, where turns have their own."""
        if self.turn_advantages is None or self.completion.turns is None:
            advantage = self.advantage if self.turn_advantages is None else self.turn_advantages[0]
            return [advantage] * len(self.completion.ids)
        each = [0.0] * len(self.completion.ids)
        for turn, advantage in zip(self.completion.turns, self.turn_advantages, strict=False):
            each[turn.start : turn.stop] = [advantage] * (turn.stop - turn.start)
        return each


def samples_of(
    scored: Sequence[ScoredGroup], mask_truncated: bool = False, oldest: int | None = None
) -> list[Sample]:
    """Return the completions of a rollout, flat, group after group.

    Args:
        mask_truncated: whether truncated completions stay out of the loss.
        oldest: optimizer steps that the weights of a completion have to have seen: older ones stay out too. None: any.
    """
    samples = []
    for number, s in enumerate(scored):
        for i, completion in enumerate(s.group.completions):
            is_out = is_stale(completion, oldest) or (mask_truncated and completion.is_truncated)
            by_turn = None if s.turn_advantages is None else s.turn_advantages[i]
            share = s.shares[i] if s.shares else 1.0
            samples.append(
                Sample(s.group.prompt, completion, s.advantages[i], number, not is_out, by_turn, share)
            )
    return samples


def is_stale(completion: Completion, oldest: int | None) -> bool:
    """Return whether a completion was drawn with weights that had seen fewer optimizer steps than `oldest`."""
    return oldest is not None and completion.version is not None and completion.version < oldest


def stale_share(scored: Sequence[ScoredGroup], oldest: int) -> Metrics:
    """Return the share of completions that are left out as their weights are too old."""
    stale = [is_stale(completion, oldest) for s in scored for completion in s.group.completions]
    return {"async/stale_share": Mean(sum(stale), len(stale))}
