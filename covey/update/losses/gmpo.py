"""GMPO: the geometric mean of clipped token ratios (arXiv:2507.20673, eq. 4).

    L_i = -A_i exp( mean_t c_{i,t} )      c = min(l - o, ε_high) where A > 0,  max(l - o, -ε_low) where A < 0

Bounds are distances of the log-ratio, not of the ratio; the paper's are 0.4 and 0.4, so set epsilon=0.4. One completion
counts as much as another, whatever its length (reduction of grpo).

TRL: epsilon and epsilon_high of its GMPO trainer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from covey.update.losses.clipped import Clip, clip_metrics
from covey.update.ratios import bounded_exp, ratio
from covey.update.terms import LossTerms, TokenLosses


@dataclass(frozen=True)
class Gmpo:
    """GMPO; formula and paper at the head of this file."""

    clip: Clip = field(default_factory=Clip)
    needs_every_row: ClassVar[bool] = False

    def __call__(self, terms: LossTerms) -> TokenLosses:
        clipped = one_sided(
            terms.logprobs - terms.old_logprobs, terms.advantages, self.clip.low, self.clip.high
        )
        losses = -bounded_exp(terms.row_means(clipped)) * terms.advantages
        ratios = ratio(terms.logprobs, terms.old_logprobs).detach()
        return losses, clip_metrics(terms, ratios, math.exp(-self.clip.low), math.exp(self.clip.high))


def one_sided(log_ratios: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Clip log-ratios on the side that the advantage pushes towards; shape (tokens,)."""
    return torch.where(advantages > 0, log_ratios.clamp(max=high), log_ratios.clamp(min=-low))
