"""One reducer: what a token weighs in the loss of an optimizer step.

Every loss is a weighted sum of token losses, `Σ w_i Σ_t x_{i,t}`, and the losses differ in `w_i` alone. The weights are
worked out once per optimizer step, from totals over all micro-batches and processes, so the gradient does not depend on
how the step is cut into micro-batches.

    grpo      1 / (N n_i)       mean over sequences of the mean over tokens     arXiv:2402.03300, eq. 3
    dr_grpo   1 / (N L_max)     sum over tokens over a constant                 arXiv:2503.20783, section 3.2
    dapo      1 / Σ n           mean over all tokens of the step                arXiv:2503.14476, eq. 8
    bnpo      1 / (M Σ_mb n)    mean over micro-batches of the mean over their tokens

n_i: tokens of completion i that enter the loss; N: completions of the step, those without loss tokens included; M:
micro-batches of the step over all processes. bnpo is local by definition: it changes with the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Totals:
    """What an optimizer step holds, over all micro-batches and processes."""

    tokens: int
    """Tokens that enter the loss."""
    sequences: int
    """Completions, those without loss tokens included."""
    micro_batches: int

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.micro_batches + other.micro_batches,
        )


def row_weights(loss_type: str, lengths: Sequence[int], totals: Totals, max_length: int) -> list[float]:
    """What a token of each completion of one micro-batch weighs.

    Args:
        loss_type: one of the names above.
        lengths: tokens that enter the loss, per completion of the micro-batch.
        totals: of the whole optimizer step.
        max_length: the limit of new tokens, L_max.

    Returns:
        One weight per completion; 0 where no token enters the loss.
    """
    local = sum(lengths)
    weight = {
        "grpo": lambda n: 1 / (totals.sequences * n),
        "dr_grpo": lambda n: 1 / (totals.sequences * max_length),
        "dapo": lambda n: 1 / totals.tokens,
        "bnpo": lambda n: 1 / (totals.micro_batches * local),
    }[loss_type]
    return [weight(n) if n else 0.0 for n in lengths]
