"""The feed-forward part of a layer: one network for every token, or a few of many (arXiv:1701.06538)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.kernels.linear import Projection

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FeedForward:
    """down(activation(gate) · up), or down(activation(up)) without a gate."""

    gate_up: Projection
    """Gate and up, one after the other; up alone without a gate."""
    down: Projection
    activation: Activation
    has_gate: bool = True

    def __call__(self, rows: Tensor) -> Tensor:
        inner = self.gate_up(rows)
        if not self.has_gate:
            return self.down(self.activation(inner))
        gate, up = inner.chunk(2, -1)
        return self.down(self.activation(gate).mul_(up))


@dataclass(frozen=True)
class ClampedFeedForward:
    """down((up + 1) · gate · sigmoid(slope · gate)) with gate and up held within a limit (gpt-oss)."""

    gate_up: Projection
    down: Projection
    slope: float
    limit: float

    def __call__(self, rows: Tensor) -> Tensor:
        gate, up = self.gate_up(rows).chunk(2, -1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.down((up + 1) * gate * torch.sigmoid(gate * self.slope))


@dataclass(frozen=True)
class Experts:
    """Networks of which a router gives each token the few with the largest probabilities."""

    router: Projection
    networks: Sequence[FeedForward | ClampedFeedForward]
    chosen: int
    """Networks per token."""
    adds_up_to_one: bool
    """Whether the probabilities of the chosen ones are divided by their sum."""
    shared: FeedForward | None = None
    """Read by every token besides."""
    shared_gate: Projection | None = None
    """Its weight, before the sigmoid."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the weighted sum in float32; it goes from the first network to the last, whatever other tokens there are."""
        probabilities = torch.softmax(self.router(rows).float(), -1)
        weights, numbers = probabilities.topk(self.chosen, -1)  # (rows, chosen)
        if self.adds_up_to_one:
            weights = weights / weights.sum(-1, keepdim=True)
        total = torch.zeros_like(rows, dtype=torch.float32)
        order = numbers.flatten().argsort(stable=True)
        tokens, weights = order // self.chosen, weights.flatten()[order, None]
        counts = numbers.flatten().bincount(minlength=len(self.networks)).tolist()
        stop = 0
        for network, count in zip(self.networks, counts, strict=True):
            start, stop = stop, stop + count
            if count:
                its = tokens[start:stop]
                total.index_add_(0, its, network(rows[its]) * weights[start:stop])
        if self.shared is not None and self.shared_gate is not None:
            total += torch.sigmoid(self.shared_gate(rows).float()) * self.shared(rows)
        return total
