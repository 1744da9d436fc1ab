"""The GRPO objective: log-probabilities, advantages and masks in; a scalar and metrics out.

Source: GRPO (arXiv:2402.03300, eq. 3 and 4), with the clip bounds of DAPO (arXiv:2503.14476, eq. 8), the cap of
INTELLECT-2 for negative advantages (arXiv:2505.07291, section 3.4), and the KL estimators of Schulman ("Approximating KL
divergence", 2020).

Departures:
- The KL estimate is multiplied by the ratio (DeepSeek-V3.2, arXiv:2512.02556), so that its gradient is that of the
  divergence; differentiated alone, k3 has the gradient of the reversed divergence.
- Log-ratios are bounded to ±20 before they are exponentiated; beyond, the loss would overflow long before it meant
  anything. `ratio/bounded` counts how often that happens.

Symbols: l, o, f are log-probabilities of the sampled token under the present policy, the policy at sampling time and the
reference; r = exp(l - o); A the advantage. All tensors are flat over the tokens of a micro-batch, shape (tokens,).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.metrics import Largest, Mean, Metric, Smallest

BOUND = 20.0
"""Largest absolute log-ratio that is exponentiated; exp(20) is about 5e8."""


@dataclass(frozen=True)
class Clip:
    """Bounds of the ratio: 1 - low, 1 + high, and a cap for negative advantages."""

    low: float = 0.2
    high: float = 0.2
    delta: float | None = None


def ratio(new: Tensor, old: Tensor) -> Tensor:
    """r = exp(l - o), the log-ratio bounded."""
    return torch.exp((new - old).clamp(-BOUND, BOUND))


def clipped_loss(ratios: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A) per token; with delta, r is capped at delta in the first term."""
    free = ratios if clip.delta is None else ratios.clamp(max=clip.delta)
    bounded = ratios.clamp(1 - clip.low, 1 + clip.high)
    return -torch.minimum(free * advantages, bounded * advantages)


def k1(new: Tensor, reference: Tensor) -> Tensor:
    """l - f: unbiased, high variance, sometimes negative; its gradient through l alone is 0 in expectation."""
    return new - reference


def k2(new: Tensor, reference: Tensor) -> Tensor:
    """(l - f)² / 2: biased, low variance; its gradient is that of KL(policy, reference)."""
    return (new - reference) ** 2 / 2


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """exp(f - l) - (f - l) - 1: unbiased, low variance, never negative."""
    gap = reference - new
    return torch.exp(gap.clamp(-BOUND, BOUND)) - gap - 1


def kl_loss(new: Tensor, reference: Tensor, ratios: Tensor | None) -> Tensor:
    """k3 per token, times the ratio where its gradient is to be unbiased."""
    estimate = k3(new, reference)
    return estimate if ratios is None else estimate * ratios


def objective(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
    mask: Tensor,
    clip: Clip,
    reference: Tensor | None = None,
    beta: float = 0.0,
    unbiased_kl: bool = True,
) -> tuple[Tensor, dict[str, Metric]]:
    """The share of one micro-batch in the loss of its optimizer step.

    Args:
        new: log-probabilities under the present policy, with gradient. Shape (tokens,).
        old: the same under the policy at sampling time. Shape (tokens,).
        advantages: one per token. Shape (tokens,).
        weights: what each token weighs, see `covey.update.reduction`. Shape (tokens,).
        mask: tokens that enter the loss. Shape (tokens,), bool.
        clip: bounds of the ratio.
        reference: log-probabilities under the reference, where beta is not 0. Shape (tokens,).
        beta: weight of the KL divergence.
        unbiased_kl: whether the KL estimate is multiplied by the ratio.

    Returns:
        A scalar, and metrics over the tokens that enter the loss.
    """
    ratios = ratio(new, old)
    losses = clipped_loss(ratios, advantages, clip)
    metrics = clip_metrics(ratios.detach(), advantages, mask, clip)
    metrics["ratio/bounded"] = Mean.of(((new - old).detach().abs() > BOUND)[mask].float().tolist())
    if reference is not None:
        losses = losses + beta * kl_loss(new, reference, ratios if unbiased_kl else None)
        metrics["kl"] = masked_mean(k3(new.detach(), reference), mask)
    return (losses * weights)[mask].sum(), metrics


def clip_metrics(ratios: Tensor, advantages: Tensor, mask: Tensor, clip: Clip) -> dict[str, Metric]:
    """Shares of tokens whose gradient the clip stops, and the mean ratio."""
    low = masked_mean(((ratios < 1 - clip.low) & (advantages < 0)).float(), mask)
    high = masked_mean(((ratios > 1 + clip.high) & (advantages > 0)).float(), mask)
    return {
        "clip_ratio/low_mean": low,
        "clip_ratio/low_min": Smallest(low.value),
        "clip_ratio/high_mean": high,
        "clip_ratio/high_max": Largest(high.value),
        "clip_ratio/region_mean": Mean(low.total + high.total, low.count),
        "ratio/mean": masked_mean(ratios, mask),
    }


def masked_mean(values: Tensor, mask: Tensor) -> Mean:
    """Mean over the tokens in the mask, as sum and count."""
    kept = values[mask]
    return Mean(float(kept.double().sum()), float(kept.numel()))
