"""The entropy bonus: its coefficient, fixed or adapted to a target.

    loss ← loss - c H

H is the entropy of a token's distribution, reduced with the weights of the loss. Adaptive (Skywork-OR1, arXiv:2505.22312,
section 4.2): after each optimizer step whose mean entropy was at or below the target c grows by δ, otherwise it shrinks by
δ, within bounds; the bonus is given only while the last mean entropy was at or below the target, so not in the first step.

TRL: entropy_coef, use_adaptive_entropy, entropy_coef_min, entropy_coef_max, entropy_coef_delta, entropy_target. Departure:
TRL adds the mean entropy of all tokens whatever the reduction of the loss; here both have the same weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from covey.metrics import Mean


class BonusState(TypedDict):
    """The part of a bonus that changes, as JSON holds it."""

    coef: float
    is_given: bool
    seen: list[float]


@dataclass(frozen=True)
class Adaptation:
    """Rule by which the coefficient follows the entropy."""

    target: float = 0.2
    """In nats."""
    delta: float = 0.005
    least: float = 0.0
    most: float = 1.0


class EntropyBonus:
    """The coefficient of the bonus, step after step.

    Args:
        coef: the coefficient, or where it starts.
        adaptation: None keeps it fixed.
    """

    def __init__(self, coef: float, adaptation: Adaptation | None = None) -> None:
        self.coef, self.adaptation = coef, adaptation
        self.is_given, self.seen = adaptation is None, Mean(0.0, 0.0)

    @property
    def present(self) -> float:
        """The coefficient that the present optimizer step uses."""
        return self.coef if self.is_given else 0.0

    @property
    def is_used(self) -> bool:
        """True where any step may use a bonus."""
        return self.adaptation is not None or self.coef != 0.0

    def observe(self, entropy: Mean) -> None:
        """Take note of the entropy of a micro-batch of the present step."""
        self.seen = self.seen.merge(entropy)

    def next_step(self, gather: Callable[[Mean], list[Mean]]) -> None:
        """Close an optimizer step: adapt to the mean entropy of its tokens on every rank. Collective where it adapts.

        Args:
            gather: every rank's value; called only where the coefficient is adapted.
        """
        seen, self.seen = self.seen, Mean(0.0, 0.0)
        if self.adaptation is None:
            return
        total = functools.reduce(Mean.merge, gather(seen))
        if total.value is None:
            return
        rule = self.adaptation
        self.is_given = total.value <= rule.target
        moved = self.coef + (rule.delta if self.is_given else -rule.delta)
        self.coef = min(max(moved, rule.least), rule.most)

    def state(self) -> BonusState:
        """Return what `restore` needs so that a resumed run goes on alike."""
        return {"coef": self.coef, "is_given": self.is_given, "seen": [self.seen.total, self.seen.count]}

    def restore(self, state: BonusState) -> None:
        """Continue from a saved state."""
        self.coef, self.is_given, self.seen = state["coef"], state["is_given"], Mean(*state["seen"])
