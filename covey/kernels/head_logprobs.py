"""Hidden states → log-probability and entropy of given tokens, in chunks of rows.

Logits of a whole batch would be the largest tensor of a training step by far (tokens × vocabulary, in float32). Here a
chunk of rows meets the vocabulary at a time, forward and backward. The forward pass keeps what the backward pass needs of
the first rows, in the dtype of the products and up to a fixed size; the backward pass makes the logits of the others
again. Gradients are exact, for hidden states, weight and bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covey.kernels.head_gradient import HeadGradient
from covey.kernels.logits import Logits, chunk_rows, logits_by_chunk

KEPT_BYTES = 256 * 2**20
"""What the forward pass may keep of the soft-max for the backward pass."""


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
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        """`keep`: whether there is a backward pass. `ctx` says so of tensors that want a gradient, also without one."""
        logprobs, entropy = (hidden.new_empty(hidden.shape[0], dtype=torch.float32) for _ in range(2))
        kept = _kept_rows(hidden, weight, form) if keep else 0
        errors = hidden.new_empty(kept, weight.shape[0])
        with torch.autocast(hidden.device.type, enabled=False):
            for part, logits in logits_by_chunk(hidden, weight, bias, form, rows):
                logp = torch.log_softmax(logits, -1, out=logits)
                probabilities = logp.exp()
                logprobs[part] = logp.gather(-1, targets[part, None])[:, 0]
                entropy[part] = -torch.einsum("tv,tv->t", probabilities, logp)
                _keep(errors[part], probabilities, targets[part])
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
            d_logits = _gradient(
                torch.log_softmax(logits, -1, out=logits),
                targets[part],
                entropy[part],
                *(None if g is None else g[part] for g in gradients),
            )
            total.add(part, ctx.form.chain(d_logits, capped))
        sums = zip((total.hidden, total.weight, total.bias), (hidden, weight, bias), strict=True)
        return *(None if sum_ is None else sum_.to(x.dtype) for sum_, x in sums), None, None, None, None


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
        hidden, weight, bias, targets, form, chunk_rows(weight.shape[0]), torch.is_grad_enabled()
    )
    return logprobs, entropy


def _kept_rows(hidden: Tensor, weight: Tensor, form: Logits) -> int:
    """How many of the first rows are kept; none where a cap makes the gradient depend on the logits too."""
    if form.cap is not None:
        return 0
    return min(hidden.shape[0], KEPT_BYTES // (hidden.element_size() * weight.shape[0]))


def _keep(errors: Tensor, probabilities: Tensor, targets: Tensor) -> None:
    """errors = p - 1[y], -d log p(y)/dz, for as many rows as there is room for; `probabilities` are overwritten.

    The difference is taken in float32: a target whose probability is nearly 1 keeps its small gradient.
    """
    kept = errors.shape[0]
    targets = targets[:kept, None]
    minus_one = -torch.ones_like(targets, dtype=torch.float32)
    errors.copy_(probabilities[:kept].scatter_add_(1, targets, minus_one))


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
