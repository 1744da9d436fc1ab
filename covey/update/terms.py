"""The input of an objective from one micro-batch: the tokens that enter the loss, and nothing else.

Symbols in the formulas: l, o, b, f are log-probabilities of the sampled token under the present policy, the policy that
the update on its rollout began with, the policy that sampled as the sampler reported it, and the reference; A the advantage; i
counts completions, t the tokens of one, n_i their number. Unless rollouts are sampled ahead (`async_lag`) or groups trained on again
(`replay_groups`), o and b are of the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.metrics import Mean, Metric
from covey.update.micro_batch import MicroBatch


@dataclass(frozen=True)
class LossTerms:
    """Flat tensors over the tokens in the loss, completion after completion; each has the shape (tokens,)."""

    logprobs: Tensor
    """l: natural log-probability of each sampled token under the present policy, with gradient."""
    old_logprobs: Tensor
    """o: the same under the policy that the rollout began with, as the trainer computes it."""
    sampler_logprobs: Tensor
    """b: under the policy that sampled, as the sampler reported it."""
    advantages: Tensor
    """A of the token's completion, or of its turn."""
    weights: Tensor
    """Weight of the token in the optimizer step; see `covey.update.reduction`."""
    row: Tensor
    """Number of the token's completion in the micro-batch, int64."""
    num_rows: int
    """Completions of the micro-batch."""
    ref_logprobs: Tensor | None = None
    """f: the same under the reference; None where no divergence is asked for."""
    entropy: Tensor | None = None
    """Entropy of the present policy where the token was drawn, with gradient."""
    is_forking: Tensor | None = None
    """True where the token's entropy is among the highest of the optimizer step, bool; None: no such choice is made."""
    is_covariant: Tensor | None = None
    """True where the token's covariance is among the highest of the optimizer step, bool; None: no such choice is made."""
    is_near: Tensor | None = None
    """False where the gap o - b is among those that are dropped of the optimizer step, bool; None: no such choice is made."""

    def row_sums(self, values: Tensor) -> Tensor:
        """Sum over each completion, shape (num_rows,); 0 for a completion without tokens in the loss.

        Completions of 2 tokens and of 1: values [1, 3, 5] give [4, 5]; `terms.row_sums(values)[terms.row]` gives each token
        that of its completion.
        """
        return values.new_zeros(self.num_rows).index_add(0, self.row, values)

    def row_means(self, values: Tensor) -> Tensor:
        """Take the mean over each completion, given back to each of its tokens: shape (tokens,), not (num_rows,).

        Completions of 2 tokens and of 1: values [1, 3, 5] give [2, 2, 5].
        """
        return (self.row_sums(values) / self.lengths.to(values.dtype))[self.row]

    @property
    def lengths(self) -> Tensor:
        """n_i, at least 1. Shape (num_rows,)."""
        return torch.bincount(self.row, minlength=self.num_rows).clamp(min=1)

    def mean(self, values: Tensor) -> Mean:
        """Return the mean over the tokens, as sum and count."""
        wide = torch.promote_types(values.dtype, torch.float32)
        return Mean(float(values.detach().to(wide).sum()), float(values.numel()))


TokenLosses = tuple[Tensor, dict[str, Metric]]
"""Loss of each token, shape (tokens,), and metrics."""

Loss = Callable[[LossTerms], TokenLosses | Tensor]
"""The policy's part of the objective, before divergence, bonus and reduction: token losses, with or without metrics."""


def loss_terms(batch: MicroBatch, logprobs: Tensor, entropy: Tensor | None = None) -> LossTerms:
    """Pick the terms of the tokens of a micro-batch that enter the loss.

    Args:
        logprobs, entropy: of all tokens under the present policy, shape (tokens of the micro-batch,).
    """
    kept = batch.mask.nonzero()[:, 0]
    row = batch.row[kept]
    old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    optional = (batch.ref_logprobs, entropy, batch.is_forking, batch.is_covariant, batch.is_near)
    return LossTerms(
        logprobs[kept],
        old[kept],
        batch.sampler_logprobs[kept],
        batch.advantage_of_token[kept],
        batch.weights[row],
        row,
        batch.num_rows,
        *(None if x is None else x[kept] for x in optional),
    )
