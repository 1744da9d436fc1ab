"""Two formulas under the names and on the padded rows that scripts for other GRPO trainers call them with.

The trainer has flat tokens, and the `top_entropy` and `off_policy_mask` of this folder; a law holds these to them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.update.sampler_correction import has_left


def high_entropy_mask(trainer: object, entropies: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Return the tokens whose entropy is at least the quantile `threshold` of all tokens under the mask, bool, (rows, tokens).

    Args:
        trainer: not looked at; it is the `self` of a method.
        entropies, mask: shape (rows, tokens); of this process alone.
        threshold: in [0, 1].
    """
    kept = mask.bool()
    if not kept.any():
        return kept
    return kept & (entropies >= torch.quantile(entropies[kept].float(), threshold))


def off_policy_mask(
    advantages: Tensor, logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, threshold: float
) -> Tensor:
    """Return 1 for completions that stay and 0 for those that `off_policy_mask_threshold` leaves out, shape (rows, 1).

    Args:
        advantages: shape (rows, 1).
        logprobs, sampler_logprobs, mask: shape (rows, tokens).
        threshold: mean drift, in nats per token.
    """
    drift = torch.where(mask.bool(), sampler_logprobs - logprobs, 0.0).sum(1, keepdim=True)
    moved = drift / mask.sum(1, keepdim=True).clamp(min=1)
    return (~has_left(advantages, moved, threshold)).to(mask.dtype)
