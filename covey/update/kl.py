"""The divergence between policy and reference, estimated from the sampled tokens.

    k1 = d          k2 = d² / 2          k3 = exp(-d) + d - 1          d = l - f

Source: Schulman, "Approximating KL divergence" (2020). k1 and k3 are unbiased as numbers; as losses, differentiated
through l alone, they are not: k1 has no gradient in expectation, k3 that of the reversed divergence, k2 the right one
(arXiv:2506.09477). Times the ratio, differentiated as well, k1 and k3 are right (DeepSeek-V3.2, arXiv:2512.02556); k2 is
right off the sampling policy too when it is weighed by the ratio as a number. `unbiased` does that for each.

In the reward the divergence of a completion, summed over its tokens, is taken off before advantages are worked out; there
k1 is the estimator whose gradient is that of the divergence.

TRL: beta, use_bias_correction_kl.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from covey.types import KlEstimator
from covey.update.ratios import bounded_exp


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Compute l - f, shape (tokens,): unbiased, high variance, sometimes negative."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Compute (l - f)² / 2, shape (tokens,): biased, low variance."""
    return (logprobs - ref_logprobs) ** 2 / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Compute exp(f - l) - (f - l) - 1, shape (tokens,): unbiased, low variance, never negative."""
    gap = ref_logprobs - logprobs
    return bounded_exp(gap) - gap - 1


ESTIMATORS: dict[KlEstimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_loss(estimator: KlEstimator, logprobs: Tensor, ref_logprobs: Tensor, ratios: Tensor | None) -> Tensor:
    """Compute the divergence as a loss per token, shape (tokens,).

    Args:
        estimator: k1, k2 or k3.
        logprobs, ref_logprobs: shape (tokens,), the first with gradient.
        ratios: r with gradient, to make the gradient unbiased; None differentiates the estimator alone.
    """
    values = ESTIMATORS[estimator](logprobs, ref_logprobs)
    if ratios is None:
        return values
    return values * (ratios.detach() if estimator == "k2" else ratios)
