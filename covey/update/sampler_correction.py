"""Correction where the sampler's log-probabilities are not the trainer's, or the policy has moved far since.

Weights for a sampler that computes in another precision or lags behind, ρ = exp(o - b), as numbers without gradient:

    token_truncate       min(ρ, C), at least the floor               truncated importance sampling
    token_mask           ρ where floor ≤ ρ ≤ C, 0 elsewhere          IcePop (arXiv:2510.18855)
    token_m2             as token_truncate, 0 where the token is none of those whose mean squared gap is small
                         (`covey.update.token_selection`)            M2PO (arXiv:2510.01161)
    sequence_truncate    token_truncate and token_mask for the product over the completion, exp(Σ_t (o - b))
    sequence_mask
    geometric_truncate   the same for the geometric mean over the completion, exp(mean_t (o - b))
    geometric_mask

A product grows with the length: an average gap of 5e-4 nats per token is 1.65 after 1,000 tokens and 7.39 after 4,000, so
the sequence modes fall upon long completions; a geometric mean has no length, and its bounds lie near 1. A log-weight below
`ROUNDING` is rounding, and the weight is exactly 1; so a sampler that shares weights and numerics with the trainer changes
nothing. Departure from M2PO, whose tokens weigh ρ however large: here cap and floor bound it.

Off-policy sequence mask (DeepSeek-V3.2, arXiv:2512.02556, section 3.1): a completion with negative advantage is left out
where mean_t (b - l) is above a threshold.

Both weigh the policy's part of the loss, not the divergence, and leave the denominators as they are.

TRL: vllm_importance_sampling_correction, _mode, _clip_max (cap) and _clip_min (floor), off_policy_mask_threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.metrics import Evenness, Largest, Mean, Metric, Smallest
from covey.types import CorrectionMode
from covey.update.ratios import ROUNDING, bounded_exp
from covey.update.terms import LossTerms


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
    elif correction.mode.startswith("geometric"):
        gaps = terms.row_means(gaps)
    weights = bounded_exp(torch.where(gaps.abs() < ROUNDING, torch.zeros_like(gaps), gaps))
    if correction.mode.endswith(("truncate", "m2")):
        is_open = correction.cap is correction.floor is None
        bounded = weights if is_open else weights.clamp(correction.floor, correction.cap)
        return bounded if terms.is_near is None else bounded * terms.is_near
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
    return ~has_left(terms.advantages, moved, threshold)


def has_left(advantages: Tensor, moved: Tensor, threshold: float) -> Tensor:
    """Return whether a completion with negative advantage drifted further than allowed, bool; all of one shape."""
    return (advantages < 0) & (moved > threshold)


def gap_metrics(terms: LossTerms) -> dict[str, Metric]:
    """Measure how far the sampler's log-probabilities are from the trainer's."""
    gaps = (terms.old_logprobs - terms.sampler_logprobs).detach().abs()
    return {
        "sampling/logp_gap/mean": terms.mean(gaps),
        "sampling/logp_gap/max": Largest(float(gaps.max()) if gaps.numel() else None),
    }


def weight_metrics(weights: Tensor, cap: float | None) -> dict[str, Metric]:
    """Summarise the weights in use, shape (tokens,); `cap` is the largest that they may have."""
    has_tokens = weights.numel() > 0
    wide = weights.double()
    capped = float((weights >= cap).sum()) if cap is not None else 0.0
    return {
        "sampling/importance_weight/mean": Mean(float(weights.sum()), float(weights.numel())),
        "sampling/importance_weight/min": Smallest(float(weights.min()) if has_tokens else None),
        "sampling/importance_weight/max": Largest(float(weights.max()) if has_tokens else None),
        "sampling/masked_share": Mean(float((weights == 0).sum()), float(weights.numel())),
        "sampling/capped_share": Mean(capped, float(weights.numel())),
        "sampling/ess": Evenness(float(weights.numel()), float(wide.sum()), float((wide**2).sum())),
    }
