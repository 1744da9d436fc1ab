"""What a head gives → logits, a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_BYTES = 32 * 2**20
"""What the float32 logits of one chunk may take."""


@dataclass(frozen=True)
class Logits:
    """How a model makes logits from what its head gives.

    z = scale × (h Wᵀ + b), then cap × tanh(z / cap) where there is a cap (arXiv:2408.00118), then divided by the
    sampling temperature.
    """

    scale: float = 1.0
    cap: float | None = None
    temperature: float = 1.0

    def of(self, raw: Tensor) -> Tensor:
        """Logits in float32."""
        z = raw.float() * self.scale if self.scale != 1.0 else raw.float()
        if self.cap is not None:
            z = self.cap * torch.tanh(z / self.cap)
        return z / self.temperature if self.temperature != 1.0 else z

    def chain(self, gradient: Tensor, logits: Tensor | None) -> Tensor:
        """Gradient with respect to what the head gave, from that with respect to the logits, which only a cap needs."""
        if self.cap is not None:
            assert logits is not None
            gradient = gradient * (1 - (logits * (self.temperature / self.cap)) ** 2)
        return gradient * self.slope if self.slope != 1.0 else gradient

    @property
    def slope(self) -> float:
        """dz / d(what the head gave), where there is no cap."""
        return self.scale / self.temperature


def chunk_rows(vocabulary: int) -> int:
    """Rows whose float32 logits fit into `CHUNK_BYTES`."""
    return max(16, CHUNK_BYTES // (4 * vocabulary))


def logits_by_chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, form: Logits, rows: int, start: int = 0
) -> Iterator[tuple[slice, Tensor]]:
    """Float32 logits of `rows` rows at a time, from row `start` on.

    Minus infinity becomes a large number, so that 0 × z stays 0.
    """
    matrix = weight.to(hidden.dtype)
    offset = None if bias is None else bias.to(hidden.dtype)
    for first in range(start, hidden.shape[0], rows):
        part = slice(first, min(first + rows, hidden.shape[0]))
        raw = torch.nn.functional.linear(hidden[part], matrix, offset)
        yield part, form.of(raw).clamp_(min=-1e30)
