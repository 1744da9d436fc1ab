"""Correction where the sampler's log-probabilities are not the trainer's, or the policy has moved far since.

Weights for a sampler that computes in another precision or lags behind, ρ = exp(o - b), as numbers without gradient:

    token_truncate       min(ρ, C), at least the floor               truncated importance sampling
    token_mask           ρ where floor ≤ ρ ≤ C, 0 elsewhere          IcePop (arXiv:2510.18855)
    sequence_truncate    the same two for the product over the completion, exp(Σ_t (o - b))
    sequence_mask

A product grows with the length: an average gap of 5e-4 nats per token is 1.65 after 1,000 tokens and 7.39 after 4,000, so
the sequence modes fall upon long completions. A log-weight below `ROUNDING` is rounding, and the weight is exactly 1; so
a sampler that shares weights and numerics with the trainer changes nothing.

Off-policy sequence mask (DeepSeek-V3.2, arXiv:2512.02556, section 3.1): a completion with negative advantage is left out
where mean_t (b - l) is above a threshold.

Both weigh the policy's part of the loss, not the divergence, and leave the denominators as they are.

TRL: vllm_importance_sampling_correction, _mode, _clip_max (cap) and _clip_min (floor), off_policy_mask_threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.metrics import Largest, Mean, Metric, Smallest
from covey.types import CorrectionMode
from covey.update.ratios import bounded_exp
from covey.update.terms import LossTerms

ROUNDING = 1e-3
"""Log-weights below this are taken for rounding, in nats."""


@dataclass(frozen=True)
class SamplerCorrection:
    """Rule by which tokens are weighed for what the sampler computed differently."""

    mode: CorrectionMode = "token_truncate"
    cap: float | None = 2.0
    """Largest weight; None: no limit."""
    floor: float | None = None
    """Least weight; None: no limit."""


def importance_weights(terms: LossTerms, correction: SamplerCorrection) -> Tensor:
    """Compute the weight of each token, shape (tokens,), without gradient."""
    gaps = (terms.old_logprobs - terms.sampler_logprobs).detach()
    if correction.mode.startswith("sequence"):
        gaps = terms.row_sums(gaps)[terms.row]
    weights = bounded_exp(torch.where(gaps.abs() < ROUNDING, torch.zeros_like(gaps), gaps))
    if correction.mode.endswith("truncate"):
        is_open = correction.cap is correction.floor is None
        return weights if is_open else weights.clamp(correction.floor, correction.cap)
    kept = torch.ones_like(weights, dtype=torch.bool)
    if correction.cap is not None:
        kept &= weights <= correction.cap
    if correction.floor is not None:
        kept &= weights >= correction.floor
    return weights * kept


def off_policy_mask(terms: LossTerms, threshold: float) -> Tensor:
    """Return the tokens that stay, bool, shape (tokens,).

    Completions with negative advantage that the policy has moved away from are left out.
    """
    moved = terms.row_means((terms.sampler_logprobs - terms.logprobs).detach())
    return ~((terms.advantages < 0) & (moved > threshold))


def gap_metrics(terms: LossTerms) -> dict[str, Metric]:
    """Measure how far the sampler's log-probabilities are from the trainer's."""
    gaps = (terms.old_logprobs - terms.sampler_logprobs).detach().abs()
    return {
        "sampling/logp_gap/mean": terms.mean(gaps),
        "sampling/logp_gap/max": Largest(float(gaps.max()) if gaps.numel() else None),
    }


def weight_metrics(weights: Tensor) -> dict[str, Metric]:
    """Summarise the weights in use, shape (tokens,)."""
    has_tokens = weights.numel() > 0
    return {
        "sampling/importance_weight/mean": Mean(float(weights.sum()), float(weights.numel())),
        "sampling/importance_weight/min": Smallest(float(weights.min()) if has_tokens else None),
        "sampling/importance_weight/max": Largest(float(weights.max()) if has_tokens else None),
        "sampling/masked_share": Mean(float((weights == 0).sum()), float(weights.numel())),
    }
