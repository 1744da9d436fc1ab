"""Logits → one token and its log-probability per sequence.

The order is: repetition penalty, tokens that may not be drawn, temperature, top-k, top-p, min-p, soft-max in float32,
inverse CDF. Pure: logits and one uniform number per sequence in, ids and log-probabilities out, and a sequence's result
does not depend on the others in the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.sample.sampling import Sampling

NEVER = float("-inf")

BLOCK = 128
"""Tokens whose probabilities are summed before the search: the search runs over blocks, then inside one."""

ALMOST_ONE = 1 - 2**-52
"""A float64 that times any other is below it."""


@dataclass(frozen=True)
class Drawn:
    """One token per sequence; every tensor has the shape (sequences,)."""

    ids: Tensor
    logprobs: Tensor
    """Under the distribution that was drawn from."""
    policy_logprobs: Tensor
    """Under the policy's own distribution at the temperature."""


@dataclass(frozen=True)
class Limits:
    """What the options take away from the next token; None: nothing."""

    columns: Tensor | None = None
    """Ids that some sequences may not draw, shape (columns,)."""
    blocked: Tensor | None = None
    """Which sequences may not draw them, shape (sequences, columns)."""
    never: Tensor | None = None
    """More ids that may not be drawn, a mask of shape (sequences, vocab)."""
    seen: Tensor | None = None
    """Ids that the repetition penalty applies to, a mask of shape (sequences, vocab)."""


NO_LIMITS = Limits()


def draw(logits: Tensor, uniform: Tensor, settings: Sampling, limits: Limits = NO_LIMITS) -> Drawn:
    """Draw one token per sequence.

    Args:
        logits: what the policy gave, shape (sequences, vocab); overwritten.
        uniform: numbers in [0, 1), shape (sequences,), float64.
        settings: temperature, truncation and penalty.
        limits: tokens that may not be drawn, and those that are penalised.
    """
    scaled = at_temperature(logits, settings.temperature)
    if limits.seen is not None or limits.never is not None or settings.is_truncated:
        return _draw_changed(scaled, uniform, settings, limits)
    removed = _remove(scaled, limits)
    ids, probabilities = _pick(scaled, uniform, settings.greedy)
    logprobs = probabilities.log()
    if removed is None:
        return Drawn(ids, logprobs, logprobs)
    picked = _at(scaled, ids)
    # log Z of what is left is picked - logprobs; together with the removed part it is that of the whole vocabulary.
    return Drawn(ids, logprobs, picked - torch.logaddexp(picked - logprobs, removed))


def _draw_changed(plain: Tensor, uniform: Tensor, settings: Sampling, limits: Limits) -> Drawn:
    """The same where the distribution changes in more than a few columns."""
    total = plain.logsumexp(-1)
    changed = plain.clone()
    if limits.seen is not None:
        changed = penalize_repetition(changed, limits.seen, settings.repetition_penalty)
    if limits.never is not None:
        changed = changed.masked_fill(limits.never, NEVER)
    _remove(changed, limits)
    changed = keep_min_p(keep_top_p(keep_top_k(changed, settings.top_k), settings.top_p), settings.min_p)
    ids, probabilities = _pick(changed, uniform, settings.greedy)
    return Drawn(ids, probabilities.log(), _at(plain, ids) - total)


def at_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Logits in float32, divided by the temperature; memory of its own where the logits were not float32."""
    return logits.float() if temperature == 1.0 else logits.float() / temperature


def _remove(logits: Tensor, limits: Limits) -> Tensor | None:
    """Set blocked columns to minus infinity, in place; returns the log-sum-exp of what was there, per sequence."""
    if limits.columns is None or limits.blocked is None:
        return None
    there = logits.index_select(-1, limits.columns)
    left = there.masked_fill(limits.blocked, NEVER)
    logits.index_copy_(-1, limits.columns, left)
    return there.masked_fill(~limits.blocked, NEVER).logsumexp(-1)


def _pick(logits: Tensor, uniform: Tensor, greedy: bool) -> tuple[Tensor, Tensor]:
    """Ids, and the probabilities with which they were drawn."""
    probabilities = torch.softmax(logits, -1)
    ids = logits.argmax(-1) if greedy else inverse_cdf(probabilities, uniform)
    return ids, _at(probabilities, ids)


def _at(values: Tensor, ids: Tensor) -> Tensor:
    return values.gather(-1, ids[:, None])[:, 0]


def inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The token in whose interval of the cumulative distribution the uniform number falls.

    Two levels: sums over blocks of the vocabulary say which block, a cumulative sum inside it says which token. A token
    of probability 0 is never drawn, whatever the rounding of the sums: the search is for the first edge above a number
    that is kept below the last edge, and an edge above the one before it closes an interval that is not empty.

    Args:
        probabilities: non-negative, not necessarily normalised; shape (sequences, vocab), float32.
        uniform: numbers in [0, 1), shape (sequences,), float64.
    """
    vocab = probabilities.shape[-1]
    sums = _block_sums(probabilities)
    edges = sums.cumsum(-1)
    target = uniform.clamp(max=ALMOST_ONE)[:, None] * edges[:, -1:]
    # What is not a number is below no edge.
    block = torch.searchsorted(edges, target, right=True).clamp_(max=edges.shape[-1] - 1)
    within = _within(probabilities, block).cumsum(-1)
    inside = (target - edges.gather(-1, block)).add_(sums.gather(-1, block)).clamp_(min=0)
    inside = torch.minimum(inside, within[:, -1:] * ALMOST_ONE)
    ids = block * BLOCK + torch.searchsorted(within, inside, right=True)
    return ids[:, 0].clamp_(max=vocab - 1)


def _block_sums(probabilities: Tensor) -> Tensor:
    """Sums over consecutive blocks, shape (sequences, blocks), float64; the last block may be shorter."""
    whole = probabilities.shape[-1] // BLOCK * BLOCK
    sums = probabilities[:, :whole].unflatten(-1, (-1, BLOCK)).sum(-1) if whole else probabilities[:, :0]
    if whole < probabilities.shape[-1]:
        sums = torch.cat([sums, probabilities[:, whole:].sum(-1, keepdim=True)], -1)
    return sums.double()


def _within(probabilities: Tensor, block: Tensor) -> Tensor:
    """Probabilities of one block per sequence, 0 beyond the vocabulary; shape (sequences, BLOCK), float64."""
    vocab = probabilities.shape[-1]
    columns = block * BLOCK + torch.arange(BLOCK, device=block.device)
    if vocab % BLOCK == 0:
        return probabilities.gather(-1, columns).double()
    there = probabilities.gather(-1, columns.clamp(max=vocab - 1)).double()
    return there.masked_fill_(columns >= vocab, 0)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest logits (all that tie with the k-th); 0: all."""
    if not 0 < k < logits.shape[-1]:
        return logits
    threshold = logits.topk(k, -1).values[:, -1:]
    return logits.masked_fill(logits < threshold, NEVER)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The smallest set of most probable tokens that holds probability p (nucleus, arXiv:1904.09751), at least one; 1: all."""
    if p >= 1.0:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    is_dropped = probabilities.cumsum(-1) - probabilities >= p
    is_dropped[:, 0] = False
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, is_dropped)
    return logits.masked_fill(dropped, NEVER)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Tokens with at least p times the probability of the most probable one (arXiv:2407.01082); 0: all."""
    if p <= 0.0:
        return logits
    threshold = logits.max(-1, keepdim=True).values + math.log(p)
    return logits.masked_fill(logits < threshold, NEVER)


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of tokens seen before by the penalty, multiply negative ones (arXiv:1909.05858, 4.1).

    `seen` is a boolean mask of the shape of the logits.
    """
    if penalty == 1.0:
        return logits
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized, logits)
