"""RMS norms (arXiv:1910.07467) and layer norms (arXiv:1607.06450) in few operations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """Weights and epsilon of a norm over the last dimension."""

    weight: Tensor
    """Float32, shape (width,), or (heads, width) where each head has weights of its own."""
    epsilon: float
    is_centred: bool = False
    """Whether the mean is taken away first: a layer norm."""
    bias: Tensor | None = None
    """Float32, of the shape of the weights."""

    @cached_property
    def least(self) -> Tensor:
        """sqrt(n · epsilon) for n weights, a scalar: the length of a row that is as small as epsilon."""
        return self.weight.new_full((), (self.weight.shape[-1] * self.epsilon) ** 0.5)


def normed(states: Tensor, norm: Norm) -> Tensor:
    """Return rows divided by their root mean square, times the weights; float32, of the shape of `states`.

    PyTorch has one kernel for this on an accelerator, and nine operations on a CPU. The root of mean square and epsilon
    is hypot(length of the row, sqrt(n · epsilon)) / sqrt(n).
    """
    if norm.is_centred:
        states = states - states.mean(-1, keepdim=True)
    if states.device.type != "cpu":
        result = F.rms_norm(
            states, states.shape[-1:], None if norm.weight.ndim > 1 else norm.weight, norm.epsilon
        )
        result = result if norm.weight.ndim == 1 else result.mul_(norm.weight)
    else:
        length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        root = length.hypot_(norm.least).div_(states.shape[-1] ** 0.5)
        result = torch.div(states, root).mul_(norm.weight)
    return result if norm.bias is None else result.add_(norm.bias)
