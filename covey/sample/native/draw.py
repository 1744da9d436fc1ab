"""Logits → one token and its log-probability per sequence.

The order is: repetition penalty, tokens that may not be drawn, temperature, top-k, top-p, min-p, soft-max in float32,
inverse CDF. Pure: logits and one uniform number per sequence in, ids and log-probabilities out, and a sequence's result
does not depend on the others in the batch.

The uniform numbers of a sequence depend on the run's seed, the step, the prompt and the index in its group, and on nothing
else. So its tokens do not depend on the batch it is decoded in, on the number of processes, or on what was sampled
before, and a resumed run needs no generator state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from covey.sample.sampling import Sampling

NEVER = float("-inf")

BLOCK = 128
"""Tokens whose probabilities are summed before the search: the search runs over blocks, then inside one."""

AT_ONCE = 1 << 19
"""Logits that are drawn from together on a CPU, whole rows of them: what is computed from them stays in its caches, and is small
enough that the memory is not asked of the system anew at every step."""

ALMOST_ONE = 1 - 2**-52
"""A factor just below 1: in float64 its product with x > 0 is below x."""


@dataclass(frozen=True)
class SampledTokens:
    """One token per sequence; every tensor has the shape (sequences,)."""

    ids: Tensor
    logprobs: Tensor
    """Under the distribution that was drawn from."""
    policy_logprobs: Tensor
    """Under the policy's own distribution at the temperature."""


@dataclass(frozen=True)
class TokenMasks:
    """Tokens that may not be drawn next, or are penalised; None: none."""

    columns: Tensor | None = None
    """Ids that some sequences may not draw, shape (columns,)."""
    blocked: Tensor | None = None
    """Which sequences may not draw them, shape (sequences, columns)."""
    never: Tensor | None = None
    """More ids that may not be drawn, a mask of shape (sequences, vocab)."""
    seen: Tensor | None = None
    """Ids that the repetition penalty applies to, a mask of shape (sequences, vocab)."""

    def of(self, rows: slice) -> TokenMasks:
        """Return the masks of some sequences."""
        blocked, never, seen = (None if m is None else m[rows] for m in (self.blocked, self.never, self.seen))
        return TokenMasks(self.columns, blocked, never, seen)


NO_MASKS = TokenMasks()


def uniforms(key: Sequence[int], count: int) -> NDArray[np.float64]:
    """Return `count` numbers in [0, 1) from a counter-based generator (Philox 4x64, Salmon et al. 2011).

    Args:
        key: non-negative integers: seed, step, prompt, index.
        count: how many; the first numbers do not depend on it.
    """
    # Two 32-bit words per part, behind their number: numpy takes (1,) and (1, 0) for the same seed.
    words = [len(key), *(word for part in key for word in (part & 0xFFFFFFFF, part >> 32))]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words))).random(count)


def draw(logits: Tensor, uniform: Tensor, settings: Sampling, masks: TokenMasks = NO_MASKS) -> SampledTokens:
    """Draw one token per sequence.

    Args:
        logits: of the policy, shape (sequences, vocab); overwritten.
        uniform: numbers in [0, 1), shape (sequences,), float64.
        settings: temperature, truncation and penalty.
        masks: tokens that may not be drawn, and those that are penalised.
    """
    rows = max(1, AT_ONCE // logits.shape[-1]) if logits.device.type == "cpu" else len(logits)
    if len(logits) <= rows:
        return _draw(logits, uniform, settings, masks)
    slices = [slice(start, start + rows) for start in range(0, len(logits), rows)]
    parts = [_draw(logits[part], uniform[part], settings, masks.of(part)) for part in slices]
    ids, logprobs, own = zip(
        *((part.ids, part.logprobs, part.policy_logprobs) for part in parts), strict=True
    )
    return SampledTokens(torch.cat(ids), torch.cat(logprobs), torch.cat(own))


def _draw(logits: Tensor, uniform: Tensor, settings: Sampling, masks: TokenMasks) -> SampledTokens:
    """Draw one token per sequence, all sequences at once; see `draw`."""
    plain = logits.float() if settings.temperature == 1.0 else logits.float() / settings.temperature
    changes_many = masks.seen is not None or masks.never is not None or settings.is_truncated
    changed, removed = plain.clone() if changes_many else plain, None
    if masks.seen is not None:
        changed = penalize_repetition(changed, masks.seen, settings.repetition_penalty)
    if masks.never is not None:
        changed = changed.masked_fill(masks.never, NEVER)
    if masks.columns is not None and masks.blocked is not None:
        there = changed.index_select(-1, masks.columns)  # (sequences, columns)
        changed.index_copy_(-1, masks.columns, there.masked_fill(masks.blocked, NEVER))
        removed = there.masked_fill(~masks.blocked, NEVER).logsumexp(-1)  # (sequences,)
    if settings.is_truncated:
        changed = keep_min_p(keep_top_p(keep_top_k(changed, settings.top_k), settings.top_p), settings.min_p)

    probabilities = torch.softmax(changed, -1)
    ids = changed.argmax(-1) if settings.greedy else inverse_cdf(probabilities, uniform)
    logprobs = probabilities.gather(-1, ids[:, None])[:, 0].log()
    if not changes_many and removed is None:
        return SampledTokens(ids, logprobs, logprobs)
    picked = plain.gather(-1, ids[:, None])[:, 0]
    if removed is None or changes_many:
        return SampledTokens(ids, logprobs, picked - plain.logsumexp(-1))
    # `plain` was overwritten in the columns, so log Z of the rest is picked - logprobs; with the removed part it is that of
    # the whole vocabulary.
    return SampledTokens(ids, logprobs, picked - torch.logaddexp(picked - logprobs, removed))


def inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return the token in whose interval of the cumulative distribution the uniform number falls.

    Two levels: sums over blocks of the vocabulary say which block, a cumulative sum inside it says which token. A token
    of probability 0 is never drawn, whatever the rounding of the sums: the search is for the first edge above a number
    that is kept below the last edge, and an edge above the one before it closes an interval that is not empty.

    Args:
        probabilities: non-negative, not necessarily normalised; shape (sequences, vocab), float32.
        uniform: numbers in [0, 1), shape (sequences,), float64.
    """
    vocab = probabilities.shape[-1]
    sums = _block_sums(probabilities)  # (sequences, blocks)
    edges = sums.cumsum(-1)
    target = uniform.clamp(max=ALMOST_ONE)[:, None] * edges[:, -1:]
    # What is not a number is below no edge.
    block = torch.searchsorted(edges, target, right=True).clamp_(max=edges.shape[-1] - 1)

    columns = block * BLOCK + torch.arange(BLOCK, device=block.device)  # (sequences, BLOCK)
    if vocab % BLOCK == 0:
        within = probabilities.gather(-1, columns).double()
    else:
        within = probabilities.gather(-1, columns.clamp(max=vocab - 1)).double()
        within.masked_fill_(columns >= vocab, 0)
    within = within.cumsum(-1)
    inside = (target - edges.gather(-1, block)).add_(sums.gather(-1, block)).clamp_(min=0)
    inside = torch.minimum(inside, within[:, -1:] * ALMOST_ONE)
    ids = block * BLOCK + torch.searchsorted(within, inside, right=True)
    return ids[:, 0].clamp_(max=vocab - 1)


def _block_sums(probabilities: Tensor) -> Tensor:
    """Return sums over consecutive blocks, shape (sequences, blocks), float64; the last block may be shorter."""
    whole = probabilities.shape[-1] // BLOCK * BLOCK
    sums = probabilities[:, :whole].unflatten(-1, (-1, BLOCK)).sum(-1) if whole else probabilities[:, :0]
    if whole < probabilities.shape[-1]:
        sums = torch.cat([sums, probabilities[:, whole:].sum(-1, keepdim=True)], -1)
    return sums.double()


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Return the k largest logits (all that tie with the k-th), the others at minus infinity; 0: all."""
    if not 0 < k < logits.shape[-1]:
        return logits
    threshold = logits.topk(k, -1).values[:, -1:]
    return logits.masked_fill(logits < threshold, NEVER)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Return the smallest set of most probable tokens that holds probability p, at least one; 1: all.

    Nucleus sampling, arXiv:1904.09751.
    """
    if p >= 1.0:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    is_dropped = probabilities.cumsum(-1) - probabilities >= p
    is_dropped[:, 0] = False
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, is_dropped)
    return logits.masked_fill(dropped, NEVER)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Return tokens with at least p times the probability of the most probable one (arXiv:2407.01082); 0: all."""
    if p <= 0.0:
        return logits
    threshold = logits.max(-1, keepdim=True).values + math.log(p)
    return logits.masked_fill(logits < threshold, NEVER)


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of tokens seen before by the penalty, multiply negative ones (arXiv:1909.05858, 4.1).

    Args:
        logits: shape (sequences, vocab).
        seen: a boolean mask of the same shape.
    """
    if penalty == 1.0:
        return logits
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized, logits)
