"""Builds what an objective sees from lists of numbers, row by row, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from covey.update.terms import LossTerms

Rows = Sequence[Sequence[float]]


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flat(rows: Rows) -> Tensor:
    return tensor(*(x for row in rows for x in row))


def terms(
    log_ratios: Rows,
    advantages: Sequence[float],
    *,
    new: Rows | None = None,
    sampled: Rows | None = None,
    reference: Rows | None = None,
    weights: Sequence[float] | None = None,
    **rest: Any,
) -> LossTerms:
    """Terms of completions with the given l - o and one advantage each.

    `new` defaults to -1 for every token, `sampled` to the old log-probabilities, weights to 1. `new` carries a gradient.
    """
    lengths = [len(row) for row in log_ratios]
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    now = flat(new if new is not None else [[-1.0] * n for n in lengths]).requires_grad_()
    old = now.detach() - flat(log_ratios)
    return LossTerms(
        logprobs=now,
        old_logprobs=old,
        sampler_logprobs=old if sampled is None else flat(sampled),
        advantages=tensor(*advantages)[row],
        weights=tensor(*(weights or [1.0] * len(lengths)))[row],
        row=row,
        num_rows=len(lengths),
        ref_logprobs=None if reference is None else flat(reference),
        **rest,
    )


def gradient(loss: Tensor, given: LossTerms) -> list[float]:
    """Derivative of a sum by the present log-probabilities."""
    (slope,) = torch.autograd.grad(loss.sum(), given.logprobs, retain_graph=True, allow_unused=True)
    return [0.0] * given.logprobs.numel() if slope is None else slope.tolist()
