"""Linear layers in the form in which they are read fastest.

On a CPU the weights are put into oneDNN's blocked layout once and read as they lie: a plain bfloat16 product would put
them into that layout for every token. Elsewhere, and for small float32 matrices, a plain product is as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Projection = Callable[[Tensor], Tensor]
"""Rows of shape (rows, inputs) → (rows, outputs)."""

SMALL = 1 << 18
"""Weights of a float32 matrix below which a call into oneDNN costs more than its layout saves."""


@dataclass(frozen=True)
class PackedLinear:
    """A product with weights in oneDNN's layout."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return product


@dataclass(frozen=True)
class PlainLinear:
    """A product with weights as they are."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True)
class ConcatLinear:
    """Several products of the same rows, one after the other in the last dimension."""

    parts: Sequence[Projection]

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.cat([part(rows) for part in self.parts], -1)


def projection(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, may_pack: bool) -> Projection:
    """Build a linear layer that computes in `dtype`.

    Args:
        weight: shape (outputs, inputs).
        bias: shape (outputs,), or None.
        may_pack: whether a copy in oneDNN's layout may be made.
    """
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    is_small = dtype == torch.float32 and weight.numel() < SMALL
    if may_pack and not is_small and can_pack(weight):
        return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), bias)
    return PlainLinear(weight, bias)


def can_pack(weight: Tensor) -> bool:
    """Return whether oneDNN computes with this kind of weights on this machine."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
