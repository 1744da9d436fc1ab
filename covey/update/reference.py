"""The reference: the frozen policy that the trained one is compared with.

It is the policy's own module with the weights it had at the start: their values are kept, and lent to the module for a
forward pass. One mechanism is right for full models, fresh adapters and adapters that were trained before, and the
divergence is 0 at the first step in every case; switching the adapter off would be right only for a fresh one. Only
weights that are trained are kept, so for an adapter the reference costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Reference:
    """Values of the trained weights at one moment."""

    def __init__(self, policy: nn.Module) -> None:
        self.values = {n: p.detach().clone() for n, p in policy.named_parameters() if p.requires_grad}

    @contextmanager
    def lent_to(self, policy: nn.Module) -> Iterator[nn.Module]:
        """The policy with the reference's weights, without gradients; its own come back whatever happens.

        Values are swapped by pointer, so nothing is copied.
        """
        own: dict[str, Tensor] = {}
        parameters = dict(policy.named_parameters())
        try:
            for name, value in self.values.items():
                own[name] = parameters[name].data
                parameters[name].data = value.to(own[name].device)
            with torch.no_grad():
                yield policy
        finally:
            for name, value in own.items():
                parameters[name].data = value

    @torch.no_grad()
    def move_towards(self, policy: nn.Module, share: float) -> None:
        """reference ← share × policy + (1 - share) × reference (arXiv:2404.09656, section 3)."""
        parameters = dict(policy.named_parameters())
        for name, value in self.values.items():
            value.lerp_(parameters[name].detach().to(value), share)

    def state(self) -> dict[str, Tensor]:
        """What `restore` needs, once the reference has moved."""
        return {name: value.cpu() for name, value in self.values.items()}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        for name, value in self.values.items():
            value.copy_(state[name])
