"""The gradient of a language model's head: with respect to hidden states, weight and bias, summed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class HeadGradient:
    """Sums over the rows; None for what needs no gradient."""

    inputs: Tensor
    """Hidden states, shape (rows, hidden), in the dtype of the products."""
    matrix: Tensor
    """The head's weight in that dtype, shape (vocab, hidden)."""
    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def zeros(
        cls, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: Sequence[bool]
    ) -> HeadGradient:
        sums = [
            torch.zeros_like(x, dtype=torch.float32) if x is not None and is_needed else None
            for x, is_needed in zip((hidden, weight, bias), needed, strict=False)
        ]
        return cls(hidden, weight.to(hidden.dtype), *sums)

    def add(self, part: slice, d_raw: Tensor) -> None:
        """The share of some rows, from the gradient with respect to what the head gave for them."""
        if self.bias is not None:
            self.bias += d_raw.sum(0)
        d_raw = d_raw.to(self.inputs.dtype)
        if self.hidden is not None:
            self.hidden[part] = (d_raw @ self.matrix).float()
        if self.weight is not None:
            _add_product(self.weight, d_raw.t(), self.inputs[part])

    def add_errors(self, errors: Tensor, factors: Tensor) -> None:
        """The share of the first rows, where the gradient of what the head gave is `factors` × `errors`.

        The factors, of shape (rows, 1), meet the narrow matrices: nothing as wide as the vocabulary is made.
        """
        first = slice(0, errors.shape[0])
        if self.bias is not None:
            self.bias += (errors.t() @ factors.to(errors.dtype))[:, 0]
        if self.hidden is not None:
            self.hidden[first] = (errors @ self.matrix).float() * factors
        if self.weight is not None:
            scaled = (self.inputs[first] * factors).to(self.inputs.dtype)
            _add_product(self.weight, errors.t(), scaled)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without another tensor of the size of the head where the dtypes allow it."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
