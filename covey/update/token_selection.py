"""Choices among the tokens of a whole optimizer step, all micro-batches and ranks: made once, before the first of them is
trained on, so that they do not depend on how the step is cut.

Top-entropy tokens (arXiv:2506.01939, eq. 5): only the `share` of the tokens with the highest entropy, where the policy
decides between ways to go on, keep their part of the loss. The divergence and the denominators see all tokens. Departure:
the entropy is that of the policy at the beginning of the rollout, and the quantile that of the optimizer step.

Covariance (arXiv:2505.22617, eq. 10): c = (o - mean o) (A - mean A), means over the tokens of the step. Departures: the
tokens with the largest covariance are taken, where Clip-Cov of the paper draws them at random between the bounds, so that
the choice depends on nothing but the numbers; and the log-probability is that of the beginning of the rollout.

Second moment (M2PO, arXiv:2510.01161, algorithm 1): tokens near the sampler are those that stay when the largest gaps
|o - b| are dropped until the mean of (o - b)² over the rest is at most a limit. Departure: the policy of the gap is that of
the beginning of the rollout, not the one that moves, so that the choice is made once a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.update.micro_batch import MicroBatch
from covey.update.ratios import ROUNDING

TIE = 1e-5
"""Values this close to the last one of a choice tie with it. The first tokens of a group are drawn from one distribution, and
their entropies differ by rounding alone."""

Floats = NDArray[np.float64]
GatherArrays = Callable[[list[Floats]], list[list[Floats]]]
"""Every rank's value, in the order of the ranks."""


@dataclass(frozen=True)
class TokenSelection:
    """Choices among tokens that a run makes."""

    entropy_share: float = 1.0
    """Share of the tokens that keep their policy loss; 1: all of them, and no choice is made."""
    covariance_share: float | None = None
    """Share of the tokens with the largest covariance; None: no choice is made."""
    covariance_bounds: tuple[float, float] | None = None
    second_moment: float | None = None
    """Largest mean of the squared gaps to the sampler, in nats²; None: no choice is made."""

    @property
    def is_needed(self) -> bool:
        """True where old log-probabilities and entropies of a whole step have to be known before it is trained on."""
        return self.counts_every_token or self.covariance_share is not None

    @property
    def counts_every_token(self) -> bool:
        """True where a completion of advantage 0 moves the choice among the tokens of others."""
        return self.entropy_share < 1 or self.second_moment is not None

    def choose(self, step: Sequence[MicroBatch], entropies: Sequence[Tensor], gather: GatherArrays) -> None:
        """Write the chosen tokens into the micro-batches of an optimizer step, which have `old_logprobs`. Collective.

        Args:
            entropies: of each micro-batch, shape (tokens,), under the policy at the beginning of the rollout.
        """
        masks, old = [b.mask for b in step], [b.old_logprobs for b in step if b.old_logprobs is not None]
        if self.entropy_share < 1:
            forking = top_entropy(entropies, masks, self.entropy_share, gather)
            for batch, chosen in zip(step, forking, strict=True):
                batch.is_forking = chosen
        if (share := self.covariance_share) is not None:
            advantages = [b.advantage_of_token for b in step]
            covariant = high_covariance(old, advantages, masks, share, self.covariance_bounds, gather)
            for batch, chosen in zip(step, covariant, strict=True):
                batch.is_covariant = chosen
        if (moment := self.second_moment) is not None:
            gaps = [o - b.sampler_logprobs for o, b in zip(old, step, strict=True)]
            for batch, chosen in zip(step, within_moment(gaps, masks, moment, gather), strict=True):
                batch.is_near = chosen


def top_entropy(
    entropies: Sequence[Tensor], masks: Sequence[Tensor], share: float, gather: GatherArrays
) -> list[Tensor]:
    """Choose the tokens of an optimizer step that are among the `share` with the highest entropy. Collective.

    Args:
        entropies: one tensor per micro-batch of this rank, shape (tokens,).
        masks: tokens that enter the loss; the others are not counted, and not chosen.
        share: in (0, 1].

    Returns:
        Bool, one tensor of shape (tokens,) per micro-batch. Tokens that tie with the last one chosen are chosen too.
    """
    everywhere = _gathered(entropies, masks, gather)
    if not everywhere.size:
        return [torch.zeros_like(m) for m in masks]
    count = math.ceil(share * everywhere.size)
    threshold = float(np.partition(everywhere, -count)[-count])
    return [(e >= threshold - TIE) & m for e, m in zip(entropies, masks, strict=True)]


def high_covariance(
    logprobs: Sequence[Tensor],
    advantages: Sequence[Tensor],
    masks: Sequence[Tensor],
    share: float,
    bounds: tuple[float, float] | None,
    gather: GatherArrays,
) -> list[Tensor]:
    """Choose the tokens of an optimizer step with the largest covariance of log-probability and advantage. Collective.

    Args:
        logprobs, advantages: one tensor per micro-batch of this rank, shape (tokens,).
        masks: tokens that enter the loss.
        share: of the step's tokens; at least one is chosen.
        bounds: only covariances between these are chosen.

    Returns:
        Bool, one tensor of shape (tokens,) per micro-batch.
    """
    everywhere = [_gathered(values, masks, gather) for values in (logprobs, advantages)]
    count = everywhere[0].size
    if not count:
        return [torch.zeros_like(m) for m in masks]
    centre_o, centre_a = (float(values.mean()) for values in everywhere)
    low, high = bounds or (-math.inf, math.inf)
    covariances = [(o - centre_o) * (a - centre_a) for o, a in zip(logprobs, advantages, strict=True)]
    inside = [m & (c >= low) & (c <= high) for c, m in zip(covariances, masks, strict=True)]
    candidates = _gathered(covariances, inside, gather)
    if not candidates.size:
        return [torch.zeros_like(m) for m in masks]
    number = min(max(1, int(share * count)), candidates.size)
    threshold = float(np.partition(candidates, -number)[-number])
    return [(c >= threshold - TIE) & i for c, i in zip(covariances, inside, strict=True)]


def within_moment(
    gaps: Sequence[Tensor], masks: Sequence[Tensor], limit: float, gather: GatherArrays
) -> list[Tensor]:
    """Choose the tokens of an optimizer step that stay when the largest gaps are dropped until a mean is kept. Collective.

    Args:
        gaps: o - b in nats, one tensor per micro-batch of this rank, shape (tokens,); below `ROUNDING` they count as 0.
        masks: tokens that enter the loss; the others are not counted, and not chosen.
        limit: the mean of the squared gaps that stay is at most this.

    Returns:
        Bool, one tensor of shape (tokens,) per micro-batch. Tokens that tie with the last one dropped are dropped too.
    """
    sizes = [g.abs() * (g.abs() >= ROUNDING) for g in gaps]
    everywhere = np.sort(_gathered(sizes, masks, gather))
    means = np.cumsum(everywhere**2) / np.arange(1, everywhere.size + 1)
    dropped = everywhere[~(means <= limit)]
    bound = float(dropped[0]) - TIE if dropped.size else math.inf
    return [(s < bound) & m for s, m in zip(sizes, masks, strict=True)]


def _gathered(values: Sequence[Tensor], masks: Sequence[Tensor], gather: GatherArrays) -> Floats:
    """Return the values under the masks on all ranks, in float64."""
    own = [v[m].cpu().double().numpy() for v, m in zip(values, masks, strict=True)]
    return np.concatenate([part for rank in gather(own) for part in rank] or [np.zeros(0)])
