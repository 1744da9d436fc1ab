"""The GRPO objective: the terms of a micro-batch in; its share of the optimizer step's loss and metrics out.

    loss = Σ_{i,t} w_i ( c_{i,t} L_{i,t} + β KL_{i,t} - e H_{i,t} )

Source: GRPO (arXiv:2402.03300, eq. 3). L is one of `covey.update.losses`; w of `covey.update.reduction`, from totals of the
whole step; c the weight of a token's policy part: the correction for the sampler, the off-policy mask
(`covey.update.sampler_correction`), the choice of tokens with high entropy (`covey.update.token_selection`). KL is one of
`covey.update.kl`, H the entropy. One set of weights reduces all of it, so that β and e mean the same for every cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from covey.errors import ConfigError
from covey.metrics import Mean, Metric
from covey.types import KlEstimator
from covey.update.kl import k3, kl_loss
from covey.update.losses.clipped import Clipped
from covey.update.ratios import BOUND, ratio
from covey.update.sampler_correction import (
    SamplerCorrection,
    gap_metrics,
    importance_weights,
    off_policy_mask,
    weight_metrics,
)
from covey.update.terms import Loss, LossTerms, TokenLosses


@dataclass(frozen=True)
class Objective:
    """The function that is minimised, without the numbers of a step."""

    loss: Loss = field(default_factory=Clipped)
    """The policy's part."""
    correction: SamplerCorrection | None = None
    """Weights of tokens for what the sampler computed differently; None: all weigh 1."""
    off_policy_threshold: float | None = None
    """Completions beyond it are left out, see `covey.update.sampler_correction`; None: all stay."""
    beta: float = 0.0
    """Weight of the divergence to the reference."""
    kl_estimator: KlEstimator = "k3"
    unbiased_kl: bool = True
    """True: the estimate is weighed by the ratio, so that its gradient is that of the divergence."""

    def __call__(self, terms: LossTerms, entropy_coef: float = 0.0) -> tuple[Tensor, dict[str, Metric]]:
        """Compute a micro-batch's share in the loss of its optimizer step, a scalar, and metrics; raise as `checked_losses` does."""
        name = getattr(self.loss, "__name__", type(self.loss).__name__)
        try:
            result = self.loss(terms)
        except (TypeError, AttributeError) as error:
            raise_for_absent_term(name, terms, error)
            raise
        losses, metrics = checked_losses(name, result, terms)
        factor, factor_metrics = policy_factor(terms, self.correction, self.off_policy_threshold)
        total = losses if factor is None else losses * factor
        # A sum over the step: it counts no tokens. What was noted of the parts of a micro-batch adds up.
        metrics["policy_loss"] = Mean(float((total.detach() * terms.weights).sum()), 0.0)
        ratios = ratio(terms.logprobs, terms.old_logprobs)
        metrics |= factor_metrics | gap_metrics(terms) | {"ratio/mean": terms.mean(ratios)}
        metrics["ratio/bounded"] = terms.mean((terms.logprobs - terms.old_logprobs).abs() > BOUND)
        if terms.ref_logprobs is not None:
            weights = ratios if self.unbiased_kl else None
            divergence = kl_loss(self.kl_estimator, terms.logprobs, terms.ref_logprobs, weights)
            total = total + self.beta * divergence
            metrics["kl"] = terms.mean(k3(terms.logprobs, terms.ref_logprobs))
        if terms.entropy is not None:
            metrics["entropy"] = terms.mean(terms.entropy)
            if entropy_coef:
                total = total - entropy_coef * terms.entropy
        return (total * terms.weights).sum(), metrics


def checked_losses(name: str, result: TokenLosses | Tensor, terms: LossTerms) -> TokenLosses:
    """Return the losses that the loss `name` gave, shape (tokens,), and its metrics.

    Raises:
        ConfigError: it gave anything but one number per token, has no gradient, or has a metric that cannot be added up.
    """
    losses, metrics = result if isinstance(result, tuple) else (result, {})
    if not isinstance(losses, Tensor) or losses.shape != terms.logprobs.shape:
        came = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ConfigError(
            f"The loss {name!r} gave {came} for {terms.logprobs.numel()} tokens. "
            f"Return one loss per token, a tensor of shape {tuple(terms.logprobs.shape)}, alone or with a dictionary of "
            "metrics; the reduction follows."
        )
    if terms.logprobs.requires_grad and not losses.requires_grad:
        raise ConfigError(
            f"The loss {name!r} gave losses without gradient: nothing could be learned. Only terms.logprobs has a gradient; "
            "compute with it, and detach no result."
        )
    for metric, value in metrics.items():
        if not (hasattr(value, "merge") and hasattr(value, "value")):
            raise ConfigError(
                f"The loss {name!r} gave the metric {metric!r} as {type(value).__name__}, which cannot be added up over "
                f"micro-batches. Give terms.mean(values) of one value per token; for a plain number, from covey.metrics "
                f"import Mean; {{{metric!r}: Mean(3.0)}}."
            )
    return losses, dict(metrics)


ABSENT = {"ref_logprobs": "beta above 0, and kl_in_reward off", "is_forking": "top_entropy_quantile below 1"}
"""Terms that are None, unless a setting asks for them, and that setting."""


def raise_for_absent_term(name: str, terms: LossTerms, error: Exception) -> None:
    """Raise a ConfigError where a loss failed on a term that is None because no setting asks for it."""
    absent = [term for term in ABSENT if getattr(terms, term) is None]
    if "NoneType" in str(error) and absent:
        needs = "; ".join(f"terms.{term} needs {ABSENT[term]}" for term in absent)
        raise ConfigError(
            f"The loss {name!r} raised {type(error).__name__}: {error}. Terms that no setting asks for are None: {needs}."
        ) from error


def policy_factor(
    terms: LossTerms, correction: SamplerCorrection | None, off_policy_threshold: float | None
) -> tuple[Tensor | None, dict[str, Metric]]:
    """Compute the weight of the policy part of each token, shape (tokens,), without gradient; None: all weigh 1."""
    factors: list[Tensor] = []
    metrics: dict[str, Metric] = {}
    if correction is not None:
        weights = importance_weights(terms, correction)
        factors.append(weights)
        metrics |= weight_metrics(weights, correction.cap)
    if off_policy_threshold is not None:
        kept = off_policy_mask(terms, off_policy_threshold)
        factors.append(kept)
        metrics["sampling/off_policy_share"] = terms.mean(~kept)
    if terms.is_forking is not None:
        factors.append(terms.is_forking)
        metrics["entropy/kept_share"] = terms.mean(terms.is_forking)
    if not factors:
        return None, metrics
    return torch.stack([f.to(terms.logprobs.dtype) for f in factors]).prod(0), metrics
