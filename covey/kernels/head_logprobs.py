"""Hidden states → log-probability and entropy of given tokens, in chunks of rows.

Logits of a whole batch would be the largest tensor of a training step by far (tokens × vocabulary, in float32). Here a
chunk of rows meets the vocabulary at a time, forward and backward. The forward pass keeps what the backward pass needs of
the first rows, in the dtype of the products and up to a fixed size; the backward pass makes the logits of the others
again. Gradients are exact, for hidden states, weight and bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 32 * 2**20
"""Largest size of the float32 logits of one chunk."""
KEPT_BYTES = 256 * 2**20
"""Largest size of what the forward pass keeps of the soft-max for the backward pass."""


@dataclass(frozen=True)
class LogitForm:
    """The formula from the raw output of a model's head to its logits.

    z = scale × (h Wᵀ + b), then cap × tanh(z / cap) where there is a cap (arXiv:2408.00118), then divided by the
    sampling temperature.
    """

    scale: float = 1.0
    cap: float | None = None
    temperature: float = 1.0

    def logits(self, raw: Tensor) -> Tensor:
        """Return logits in float32, of the shape of `raw`."""
        z = raw.float() * self.scale if self.scale != 1.0 else raw.float()
        if self.cap is not None:
            z = self.cap * torch.tanh(z / self.cap)
        return z / self.temperature if self.temperature != 1.0 else z

    def raw_gradient(self, gradient: Tensor, logits: Tensor | None) -> Tensor:
        """Return the gradient with respect to the raw output, from that with respect to the logits.

        Args:
            gradient: shape (rows, vocab).
            logits: of the same shape; needed with a cap alone.
        """
        if self.cap is not None:
            assert logits is not None
            gradient = gradient * (1 - (logits * (self.temperature / self.cap)) ** 2)
        return gradient * self.slope if self.slope != 1.0 else gradient

    @property
    def slope(self) -> float:
        """dz / d(raw output), where there is no cap."""
        return self.scale / self.temperature


def chunked_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, form: LogitForm
) -> tuple[Tensor, Tensor]:
    """Compute the log-probability of each target and the entropy of its distribution.

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
        hidden, weight, bias, targets, form, chunk_rows(weight.shape[0]), torch.is_grad_enabled()
    )
    return logprobs, entropy


def chunk_rows(vocabulary: int) -> int:
    """Return how many rows have float32 logits that fit into `CHUNK_BYTES`; at least 16."""
    return max(16, CHUNK_BYTES // (4 * vocabulary))


def logits_by_chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, form: LogitForm, rows: int, start: int = 0
) -> Iterator[tuple[slice, Tensor]]:
    """Yield float32 logits of `rows` rows at a time, shape (rows, vocab), from row `start` on.

    Minus infinity becomes a large number, so that 0 × z stays 0.
    """
    matrix = weight.to(hidden.dtype)
    offset = None if bias is None else bias.to(hidden.dtype)
    for first in range(start, hidden.shape[0], rows):
        part = slice(first, min(first + rows, hidden.shape[0]))
        raw = torch.nn.functional.linear(hidden[part], matrix, offset)
        yield part, form.logits(raw).clamp_(min=-1e30)


class ChunkedLogprobs(torch.autograd.Function):
    """log p(target) and entropy per row, from hidden states and the head's weight."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        form: LogitForm,
        rows: int,
        has_backward: bool,
    ) -> tuple[Tensor, Tensor]:
        """Compute both, `rows` rows at a time.

        `has_backward` is passed, because `ctx` reports tensors that want a gradient also where no graph is recorded.
        """
        logprobs, entropy = (hidden.new_empty(hidden.shape[0], dtype=torch.float32) for _ in range(2))
        kept = 0
        if has_backward and form.cap is None:  # a cap makes the gradient depend on the logits too
            kept = min(hidden.shape[0], KEPT_BYTES // (hidden.element_size() * weight.shape[0]))
        errors = hidden.new_empty(kept, weight.shape[0])
        with torch.autocast(hidden.device.type, enabled=False):
            for part, logits in logits_by_chunk(hidden, weight, bias, form, rows):
                logp = torch.log_softmax(logits, -1, out=logits)  # (rows, vocab)
                probabilities = logp.exp()
                logprobs[part] = logp.gather(-1, targets[part, None])[:, 0]
                entropy[part] = -torch.einsum("tv,tv->t", probabilities, logp)
                # errors = p - 1[y] = -d log p(y)/dz for the rows that are kept. The difference is taken in float32, so
                # that a target whose probability is nearly 1 keeps its small gradient.
                room = errors[part]
                indices = targets[part][: len(room), None]
                minus_one = -torch.ones_like(indices, dtype=torch.float32)
                room.copy_(probabilities[: len(room)].scatter_add_(1, indices, minus_one))
        ctx.save_for_backward(hidden, weight, bias, targets, entropy, errors)
        ctx.form, ctx.rows = form, rows
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        by_logprob, by_entropy = gradients
        hidden, weight, bias, targets, entropy, errors = ctx.saved_tensors
        total = HeadGradient.zeros(hidden, weight, bias, ctx.needs_input_grad)
        kept = 0
        if by_logprob is not None and by_entropy is None:
            kept = len(errors)
            total.add_errors(errors, by_logprob[:kept, None] * -ctx.form.slope)
        for part, logits in logits_by_chunk(hidden, weight, bias, ctx.form, ctx.rows, kept):
            capped = logits.clone() if ctx.form.cap is not None else None
            d_logits = logit_gradient(
                torch.log_softmax(logits, -1, out=logits),
                targets[part],
                entropy[part],
                *(None if g is None else g[part] for g in gradients),
            )
            total.add(part, ctx.form.raw_gradient(d_logits, capped))
        sums = zip((total.hidden, total.weight, total.bias), (hidden, weight, bias), strict=True)
        return *(None if sum_ is None else sum_.to(x.dtype) for sum_, x in sums), None, None, None, None


def logit_gradient(
    logp: Tensor, targets: Tensor, entropy: Tensor, by_logprob: Tensor | None, by_entropy: Tensor | None
) -> Tensor:
    """Compute the gradient with respect to the logits; `logp` is overwritten.

    d log p(y)/dz = 1[y] - p, and dH/dz = -p (log p + H). These are the largest tensors of a step: few are made.

    Args:
        logp: log soft-max, shape (rows, vocab).
        targets, entropy, by_logprob, by_entropy: shape (rows,); the gradients are None where nothing asks for them.
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


@dataclass
class HeadGradient:
    """Gradients of the head's hidden states, weight and bias, summed in float32; None for what needs none."""

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
        """Return empty sums for those of hidden states, weight and bias that need a gradient, in this order."""
        sums = [
            torch.zeros_like(x, dtype=torch.float32) if x is not None and is_needed else None
            for x, is_needed in zip((hidden, weight, bias), needed, strict=False)
        ]
        return cls(hidden, weight.to(hidden.dtype), *sums)

    def add(self, part: slice, d_raw: Tensor) -> None:
        """Add the share of the rows `part`, from the gradient of the head's raw output, shape (rows, vocab)."""
        if self.bias is not None:
            self.bias += d_raw.sum(0)
        d_raw = d_raw.to(self.inputs.dtype)
        if self.hidden is not None:
            self.hidden[part] = (d_raw @ self.matrix).float()
        if self.weight is not None:
            _add_product(self.weight, d_raw.t(), self.inputs[part])

    def add_errors(self, errors: Tensor, factors: Tensor) -> None:
        """Add the share of the first rows, where the gradient of the raw output is `factors` × `errors`.

        The factors meet the narrow matrices, so that nothing as wide as the vocabulary is made.

        Args:
            errors: shape (rows, vocab).
            factors: shape (rows, 1).
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
    """Add a b to `total`, without another tensor of the size of the head where the dtypes allow it."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
