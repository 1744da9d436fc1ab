"""Importance ratios between the present policy and the one that sampled.

Departure: log-ratios are bounded to ±20 before they are exponentiated; beyond, a loss would overflow long before it meant
anything. The metric `ratio/bounded` counts how often that happens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.types import RatioLevel
from covey.update.terms import LossTerms

BOUND = 20.0
"""Largest absolute log-ratio that is exponentiated; exp(20) is about 5e8."""

ROUNDING = 1e-3
"""Log-weights between sampler and trainer below this are taken for rounding, in nats."""


def bounded_exp(log_ratios: Tensor) -> Tensor:
    """Return exp of log-ratios that are bounded to ±`BOUND`; of their shape."""
    return torch.exp(log_ratios.clamp(-BOUND, BOUND))


def ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return r = exp(l - o) of each token, shape (tokens,)."""
    return bounded_exp(logprobs - old_logprobs)


def ratios_at(level: RatioLevel, terms: LossTerms) -> Tensor:
    """Return the ratio of each token at a level, shape (tokens,).

    `token`             r = exp(l - o)                           GRPO
    `sequence`          s_i = exp(mean_t (l - o))                GSPO, arXiv:2507.18071, eq. 7: the length taken out
    `sequence_token`    s_{i,t} = sg(s_i) exp(l - sg(l))         GSPO-token, eq. 14: value of s_i, gradient of the token

    With one advantage for all tokens of a completion the last two have the same gradient.
    """
    if level == "token":
        return ratio(terms.logprobs, terms.old_logprobs)
    sequence = bounded_exp(terms.row_means(terms.logprobs - terms.old_logprobs))
    if level == "sequence":
        return sequence
    return sequence.detach() * torch.exp(terms.logprobs - terms.logprobs.detach())
