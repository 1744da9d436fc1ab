"""Importance ratios between the present policy and the one that sampled.

Departure: log-ratios are bounded to ±20 before they are exponentiated; beyond, a loss would overflow long before it meant
anything. The metric `ratio/bounded` says how often that happens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.types import RatioLevel
from covey.update.terms import LossTerms

BOUND = 20.0
"""Largest absolute log-ratio that is exponentiated; exp(20) is about 5e8."""


def bounded_exp(log_ratios: Tensor) -> Tensor:
    """exp of a log-ratio, bounded."""
    return torch.exp(log_ratios.clamp(-BOUND, BOUND))


def ratio(new: Tensor, old: Tensor) -> Tensor:
    """r = exp(l - o) of each token."""
    return bounded_exp(new - old)


def sequence_ratio(terms: LossTerms) -> Tensor:
    """s_i = exp(mean_t (l - o)): the ratio of the whole completion, length taken out (GSPO, arXiv:2507.18071, eq. 7)."""
    return bounded_exp(terms.row_means(terms.new - terms.old))


def sequence_token_ratio(terms: LossTerms) -> Tensor:
    """s_{i,t} = sg(s_i) exp(l - sg(l)): value of the sequence ratio, gradient of the token (GSPO-token, eq. 14).

    With one advantage for all tokens of a completion its gradient is that of the sequence ratio.
    """
    return sequence_ratio(terms).detach() * torch.exp(terms.new - terms.new.detach())


def ratios_at(level: RatioLevel, terms: LossTerms) -> Tensor:
    """The ratio of each token at a level, shape (tokens,).

    Args:
        level: `token` (GRPO), `sequence` (GSPO) or `sequence_token` (GSPO-token).
    """
    if level == "token":
        return ratio(terms.new, terms.old)
    return sequence_ratio(terms) if level == "sequence" else sequence_token_ratio(terms)
