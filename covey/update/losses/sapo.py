"""SAPO: a smooth gate in place of the clip (arXiv:2511.20347, eq. 5 and 6).

    L_{i,t} = -(4 / τ) σ( τ (r - 1) ) A        τ = τ_pos where A > 0, τ_neg elsewhere

Its slope by r is A at r = 1 and falls off on both sides; the larger τ, the sooner. Completions count alike (reduction of
grpo).

TRL: sapo_temperature_pos, sapo_temperature_neg, importance_sampling_level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.types import RatioLevel
from covey.update.ratios import ratios_at
from covey.update.terms import LossTerms, TokenLosses


@dataclass(frozen=True)
class Sapo:
    """SAPO; formula and paper at the head of this file."""

    temperature_pos: float = 1.0
    temperature_neg: float = 1.05
    level: RatioLevel = "token"
    needs_every_row: ClassVar[bool] = False

    def __call__(self, terms: LossTerms) -> TokenLosses:
        ratios = ratios_at(self.level, terms)
        temperatures = torch.where(
            terms.advantages > 0,
            terms.logprobs.new_tensor(self.temperature_pos),
            terms.logprobs.new_tensor(self.temperature_neg),
        )
        return -soft_gate(ratios, temperatures) * terms.advantages, {}


def soft_gate(ratios: Tensor, temperatures: Tensor) -> Tensor:
    """Compute (4 / τ) σ(τ (r - 1)), shape (tokens,)."""
    return 4 / temperatures * torch.sigmoid(temperatures * (ratios - 1))
