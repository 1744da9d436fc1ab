"""RMS norms (arXiv:1910.07467) in few operations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """Weights and epsilon of an RMS norm."""

    weight: Tensor
    """Float32, shape (width,)."""
    epsilon: float

    @cached_property
    def least(self) -> Tensor:
        """sqrt(n · epsilon) for n weights, a scalar: the length of a row that is as small as epsilon."""
        return self.weight.new_full((), (len(self.weight) * self.epsilon) ** 0.5)


def rms_normed(states: Tensor, norm: Norm) -> Tensor:
    """Return rows divided by their root mean square, times the weights; float32, of the shape of `states`.

    PyTorch has one kernel for this on an accelerator, and nine operations on a CPU. The root of mean square and epsilon
    is hypot(length of the row, sqrt(n · epsilon)) / sqrt(n).
    """
    if states.device.type != "cpu":
        return F.rms_norm(states, (states.shape[-1],), norm.weight, norm.epsilon)
    length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    root = length.hypot_(norm.least).div_(states.shape[-1] ** 0.5)
    return torch.div(states, root).mul_(norm.weight)
