"""Logits → one token and its log-probability per sequence.

The order is: tokens that may not be drawn, repetition penalty, temperature, top-k, top-p, min-p, soft-max in float32,
inverse CDF. Pure: logits and one uniform number per sequence in, ids and log-probabilities out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.sample.settings import Sampling

NEVER = float("-inf")


@dataclass(frozen=True)
class Drawn:
    """One token per sequence; every tensor has the shape (sequences,)."""

    ids: Tensor
    logprobs: Tensor
    """Under the distribution that was drawn from."""
    policy_logprobs: Tensor
    """Under the policy's own distribution at the temperature."""


def draw(logits: Tensor, adjusted: Tensor, uniform: Tensor, settings: Sampling) -> Drawn:
    """Draw one token per sequence.

    Args:
        logits: what the policy gave, shape (sequences, vocab).
        adjusted: the same after penalties, tokens that may not be drawn at minus infinity.
        uniform: numbers in [0, 1), shape (sequences,).
        settings: temperature and truncation.
    """
    logprobs = sampling_logprobs(adjusted, settings)
    ids = logprobs.argmax(-1) if settings.greedy else inverse_cdf(logprobs.exp(), uniform)
    drawn = logprobs.gather(-1, ids[:, None])[:, 0]
    if not settings.changes_distribution:
        return Drawn(ids, drawn, drawn)
    plain = torch.log_softmax(logits.float() / settings.temperature, -1)
    return Drawn(ids, drawn, plain.gather(-1, ids[:, None])[:, 0])


def sampling_logprobs(logits: Tensor, settings: Sampling) -> Tensor:
    """Log-probabilities at the temperature, tokens outside of top-k, top-p and min-p at minus infinity."""
    scaled = logits.float() / settings.temperature
    if not settings.is_truncated:
        return torch.log_softmax(scaled, -1)
    scaled = keep_top_k(scaled, settings.top_k)
    scaled = keep_top_p(scaled, settings.top_p)
    scaled = keep_min_p(scaled, settings.min_p)
    return torch.log_softmax(scaled, -1)


def inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The token in whose interval of the cumulative distribution the uniform number falls.

    A token of probability 0 is never drawn, whatever the rounding of the sum: its interval is empty, and a number at
    or beyond the end of the sum takes the last token that has an interval.
    """
    cumulative = probabilities.double().cumsum(-1)
    total = cumulative[:, -1:]
    target = uniform.double()[:, None] * total
    found = torch.searchsorted(cumulative, target, right=True)[:, 0]
    last = torch.searchsorted(cumulative, total.contiguous(), right=False)[:, 0]
    return torch.minimum(found, last)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest logits (all that tie with the k-th); 0: all."""
    if not 0 < k < logits.shape[-1]:
        return logits
    threshold = logits.topk(k, -1).values[:, -1:]
    return logits.masked_fill(logits < threshold, NEVER)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The smallest set of most probable tokens that holds probability p (nucleus, arXiv:1904.09751); 1: all."""
    if p >= 1.0:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= p)
    return logits.masked_fill(dropped, NEVER)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Tokens with at least p times the probability of the most probable one (arXiv:2407.01082); 0: all."""
    if p <= 0.0:
        return logits
    threshold = logits.max(-1, keepdim=True).values + torch.log(torch.tensor(p))
    return logits.masked_fill(logits < threshold, NEVER)


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of tokens seen before by the penalty, multiply negative ones (arXiv:1909.05858, 4.1).

    `seen` is a boolean mask of the shape of the logits.
    """
    if penalty == 1.0:
        return logits
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized, logits)
