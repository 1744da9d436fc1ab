"""VESPO: a smooth weight on the ratio of the whole completion (arXiv:2602.10693).

    L_{i,t} = -sg( φ(w_i) ) A l        φ(w) = w^k exp( λ (1 - w) )        w_i = exp( Σ_t (l - b) )

(k, λ) differ by the sign of the advantage; φ(1) = 1. The ratio is taken to what the sampler reported, so no correction
for the sampler comes on top; with importance_sampling_correction=False it is taken to the trainer's own old
log-probabilities. log w is bounded to [log 1e-8, 20], token log-ratios to ±20. The value contains l, so only gradients
can be compared with those of other losses.

TRL: vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from covey.metrics import Metric
from covey.update.ratios import BOUND
from covey.update.terms import LossTerms, TokenLosses

LOWEST = math.log(1e-8)
"""Least log w."""


@dataclass(frozen=True)
class Vespo:
    """VESPO; formula and paper at the head of this file. `positive` and `negative` are the pairs (k, λ)."""

    positive: tuple[float, float] = (2.0, 3.0)
    negative: tuple[float, float] = (3.0, 2.0)
    against_sampler: bool = True
    needs_every_row: ClassVar[bool] = False

    def __call__(self, terms: LossTerms) -> TokenLosses:
        base = terms.sampler_logprobs if self.against_sampler else terms.old_logprobs
        gaps = (terms.logprobs.detach() - base).clamp(-BOUND, BOUND)
        log_w = terms.row_sums(gaps)[terms.row]
        phi = torch.where(
            terms.advantages >= 0, soft_weight(log_w, *self.positive), soft_weight(log_w, *self.negative)
        )
        metrics: dict[str, Metric] = {"vespo/weight_mean": terms.mean(phi)}
        return -phi * terms.advantages * terms.logprobs, metrics


def soft_weight(log_w: Tensor, k: float, lam: float) -> Tensor:
    """Compute φ(w) = exp(λ + k log w - λ w), of the shape of `log_w`."""
    log_w = log_w.clamp(LOWEST, BOUND)
    return torch.exp(lam + k * log_w - lam * log_w.exp())
