"""CISPO: the weight is clipped instead of the gradient, so that every token keeps one (arXiv:2506.13585, eq. 4 and 5).

    L_{i,t} = -sg( w ) A l

Two conventions are in use for the upper bound, and `cispo_bound` chooses the one that `epsilon_high` follows:

    absolute    w = min(r, ε_high)                       TRL, Unsloth, Liger; ScaleRL (arXiv:2510.13786) takes 5
    relative    w = clip(r, 1 - ε_low, 1 + ε_high)       the paper, verl, NeMo, slime

epsilon_high has no default here: taken from epsilon, an absolute cap of 0.2 would shrink every weight to a fifth.
The value of this loss contains l, so it cannot be compared with that of a clipped loss; its gradient can.

TRL: loss_type="cispo", epsilon_high.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from covey.metrics import Metric
from covey.types import CispoBound, RatioLevel
from covey.update.ratios import ratios_at
from covey.update.terms import LossTerms, TokenLosses


@dataclass(frozen=True)
class Cispo:
    """CISPO; formula and paper at the head of this file."""

    low: float
    high: float
    bound: CispoBound = "absolute"
    level: RatioLevel = "token"
    needs_every_row: ClassVar[bool] = False

    def __call__(self, terms: LossTerms) -> TokenLosses:
        ratios = ratios_at(self.level, terms).detach()
        weights = clipped_weights(ratios, self.low, self.high, self.bound)
        capped: dict[str, Metric] = {"cispo_clip_ratio": terms.mean(weights != ratios)}
        return -weights * terms.advantages * terms.logprobs, capped


def clipped_weights(ratios: Tensor, low: float, high: float, bound: CispoBound) -> Tensor:
    """Return the weight w of each token, shape (tokens,)."""
    return ratios.clamp(max=high) if bound == "absolute" else ratios.clamp(1 - low, 1 + high)
