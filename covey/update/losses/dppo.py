"""DPPO: tokens are dropped by the difference of probabilities, not by their ratio (arXiv:2602.04879).

    L_{i,t} = -m r_b A + c (l - b)²        r_b = exp(l - b)
    m = 0 where A > 0 and e^l - e^b > ε_high, or A < 0 and e^l - e^b < -ε_low;  1 elsewhere

A ratio says little about rare tokens: from 1e-4 to 2e-4 doubles it and changes the policy by nothing. The second term
holds every token near the sampler, c = dppo_kl_coef. Everything is compared with what the sampler reported, so no
correction for the sampler comes on top. The bounds are probabilities; epsilon's default 0.2 is the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from covey.metrics import Metric
from covey.update.losses.clipped import Clip
from covey.update.ratios import ratio
from covey.update.terms import LossTerms, TokenLosses


@dataclass(frozen=True)
class Dppo:
    """DPPO; formula and paper at the head of this file."""

    clip: Clip = field(default_factory=Clip)
    kl_coef: float = 1e-3
    needs_every_row: ClassVar[bool] = True

    def __call__(self, terms: LossTerms) -> TokenLosses:
        dropped = leaves_region(terms.logprobs.detach(), terms.sampler_logprobs, terms.advantages, self.clip)
        policy = -ratio(terms.logprobs, terms.sampler_logprobs) * terms.advantages
        losses = torch.where(dropped, torch.zeros_like(policy), policy)
        metrics: dict[str, Metric] = {"dppo/masked_share": terms.mean(dropped)}
        return losses + self.kl_coef * (terms.logprobs - terms.sampler_logprobs) ** 2, metrics


def leaves_region(logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """Return whether a token's probability moved beyond the bound in the direction of its advantage; bool, (tokens,)."""
    moved = logprobs.exp() - sampler_logprobs.exp()
    return ((advantages > 0) & (moved > clip.high)) | ((advantages < 0) & (moved < -clip.low))
