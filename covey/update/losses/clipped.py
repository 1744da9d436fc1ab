"""The clipped loss of GRPO: `loss_type` grpo, dr_grpo, dapo, bnpo and prompt_mean, which differ in the reduction alone.

    L_{i,t} = -min( r A, clip(r, 1 - ε_low, 1 + ε_high) A )

Sources: GRPO (arXiv:2402.03300, eq. 3), with two bounds as in DAPO (arXiv:2503.14476, eq. 8). With `delta` the ratio is
capped in the first term, r ← min(r, δ), which bounds the loss of negative advantages (INTELLECT-2, arXiv:2505.07291,
section 3.4; the same numbers as dual clip, arXiv:1912.09729, with c = δ). At the levels `sequence` and `sequence_token`
r is the ratio of the whole completion: GSPO (arXiv:2507.18071, eq. 5 and 13), which goes with the reduction of grpo; the
paper's bounds are 3e-4 and 4e-4. The other reductions weigh its completions by their length.

TRL: epsilon, epsilon_high, delta, importance_sampling_level; `sequence_token` is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from covey.metrics import Largest, Metric, Smallest
from covey.types import RatioLevel
from covey.update.ratios import ratios_at
from covey.update.terms import LossTerms, TokenLosses


@dataclass(frozen=True)
class Clip:
    """Bounds of the ratio: 1 - low, 1 + high, and a cap for negative advantages."""

    low: float = 0.2
    high: float = 0.2
    delta: float | None = None


@dataclass(frozen=True)
class Clipped:
    """The clipped loss of GRPO; formula and paper at the head of this file."""

    clip: Clip = field(default_factory=Clip)
    level: RatioLevel = "token"
    needs_every_row: ClassVar[bool] = False

    def __call__(self, terms: LossTerms) -> TokenLosses:
        ratios = ratios_at(self.level, terms)
        losses = clipped_loss(ratios, terms.advantages, self.clip)
        return losses, clip_metrics(terms, ratios.detach(), 1 - self.clip.low, 1 + self.clip.high)


def clipped_loss(ratios: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """Compute -min(r A, clip(r, 1 - low, 1 + high) A) per token; with delta, r is capped at delta in the first term.

    Args:
        ratios: r, of the present policy to that of the sampling time. Shape (tokens,).
        advantages: A of each token's completion. Shape (tokens,).
        clip: the bounds.

    Returns:
        Shape (tokens,). Source: GRPO (arXiv:2402.03300, eq. 3), DAPO (arXiv:2503.14476, eq. 8).
    """
    free = ratios if clip.delta is None else ratios.clamp(max=clip.delta)
    bounded = ratios.clamp(1 - clip.low, 1 + clip.high)
    return -torch.minimum(free * advantages, bounded * advantages)


def clip_metrics(terms: LossTerms, ratios: Tensor, low: float, high: float) -> dict[str, Metric]:
    """Return the shares of tokens whose gradient the clip stops: ratio and advantage have to point the same way."""
    below = terms.mean((ratios < low) & (terms.advantages < 0))
    above = terms.mean((ratios > high) & (terms.advantages > 0))
    return {
        "clip_ratio/low_mean": below,
        "clip_ratio/low_min": Smallest(below.value),
        "clip_ratio/high_mean": above,
        "clip_ratio/high_max": Largest(above.value),
        "clip_ratio/region_mean": type(below)(below.total + above.total, below.count),
    }
