"""Hidden states → log-probability and entropy of given tokens, in chunks of rows.

Logits of a whole batch would be the largest tensor of a training step by far (tokens × vocabulary, in float32). Here a
chunk of rows meets the vocabulary at a time, forward and backward: the forward pass keeps one number per token, the
backward pass makes the chunk's logits again. Gradients are exact, for hidden states, weight and bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20
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
        factor = self.scale / self.temperature
        return gradient * factor if factor != 1.0 else gradient


def chunk_rows(vocabulary: int) -> int:
    """Rows whose float32 logits fit into `CHUNK_BYTES`."""
    return max(16, CHUNK_BYTES // (4 * vocabulary))


class ChunkedLogprobs(torch.autograd.Function):
    """log p(target) and entropy per row, from hidden states and the head's weight."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        form: Logits,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(hidden.shape[0], dtype=torch.float32)
        entropy, total = torch.empty_like(logprobs), torch.empty_like(logprobs)
        with torch.autocast(hidden.device.type, enabled=False):
            for part, logits in _logits_by_chunk(hidden, weight, bias, form, rows):
                total[part] = logits.logsumexp(-1)
                logprobs[part] = logits.gather(-1, targets[part, None])[:, 0] - total[part]
                entropy[part] = _entropy(logits, total[part])
        ctx.save_for_backward(hidden, weight, bias, targets, total, entropy)
        ctx.form, ctx.rows = form, rows
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, total, entropy = ctx.saved_tensors
        d_hidden, d_weight, d_bias = (
            torch.zeros_like(x, dtype=torch.float32) if needed else None
            for x, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        matrix = weight.to(hidden.dtype)
        for part, logits in _logits_by_chunk(hidden, weight, bias, ctx.form, ctx.rows):
            kept = logits.clone() if ctx.form.cap is not None else None
            d_logits = _gradient(
                logits.sub_(total[part, None]),
                targets[part],
                entropy[part],
                *(None if g is None else g[part] for g in gradients),
            )
            d_raw = ctx.form.chain(d_logits, kept)
            if d_bias is not None:
                d_bias += d_raw.sum(0)
            d_raw = d_raw.to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[part] = (d_raw @ matrix).float()
            if d_weight is not None:
                _add_product(d_weight, d_raw.t(), hidden[part])
        return (
            None if d_hidden is None else d_hidden.to(hidden.dtype),
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            None,
            None,
            None,
        )


def chunked_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, form: Logits
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution.

    Args:
        hidden: shape (tokens, hidden). Matrices are multiplied in its dtype; soft-max is in float32.
        weight: shape (vocab, hidden), of any dtype; its gradient is summed in float32.
        bias: shape (vocab,), or None.
        targets: ids, shape (tokens,).
        form: scale, cap and temperature.

    Returns:
        Two float32 tensors of shape (tokens,), both with gradient.
    """
    logprobs, entropy = ChunkedLogprobs.apply(
        hidden, weight, bias, targets, form, chunk_rows(weight.shape[0])
    )
    return logprobs, entropy


def _logits_by_chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, form: Logits, rows: int
) -> Iterator[tuple[slice, Tensor]]:
    """Float32 logits of some rows at a time. Minus infinity becomes a large number, so that 0 × z stays 0."""
    matrix = weight.to(hidden.dtype)
    offset = None if bias is None else bias.to(hidden.dtype)
    for first in range(0, hidden.shape[0], rows):
        part = slice(first, min(first + rows, hidden.shape[0]))
        raw = torch.nn.functional.linear(hidden[part], matrix, offset)
        yield part, form.of(raw).clamp_(min=-1e30)


def _entropy(logits: Tensor, total: Tensor) -> Tensor:
    """H = log Z - Σ p z."""
    probabilities = (logits - total[:, None]).exp_()
    return total - torch.einsum("tv,tv->t", probabilities, logits)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without another tensor of the size of the head where the dtypes allow it."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _gradient(
    logp: Tensor,
    targets: Tensor,
    entropy: Tensor,
    by_logprob: Tensor | None = None,
    by_entropy: Tensor | None = None,
) -> Tensor:
    """Gradient with respect to the logits; `logp` is overwritten.

    d log p(y)/dz = 1[y] - p, and dH/dz = -p (log p + H). The largest tensors of the step: as few of them as can be.
    """
    factor: Tensor | float = 0.0
    if by_entropy is not None:
        factor = (logp + entropy[:, None]).mul_(by_entropy[:, None])
    if by_logprob is not None:
        factor = factor + by_logprob[:, None]
    gradient = logp.exp_().mul_(factor).neg_()
    if by_logprob is not None:
        gradient.scatter_add_(1, targets[:, None], by_logprob[:, None])
    return gradient
