"""The samples of a window → micro-batches, weighed over the whole optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from covey.update.batch import MicroBatch, Sample, micro_batch
from covey.update.reduction import Totals, row_weights

Numbered = tuple[int, Sample]
"""A sample and its number within the window."""


def assemble(
    cut: Sequence[Sequence[Numbered]],
    accumulation: int,
    loss_type: str,
    max_length: int,
    gather: Callable[[Any], list[Any]],
) -> list[MicroBatch]:
    """Micro-batches with the weights of their rows.

    Args:
        cut: the samples of each micro-batch of this process, in order.
        accumulation: micro-batches per optimizer step.
        loss_type, max_length: see `covey.update.reduction`.
        gather: every process's value; called once per optimizer step.
    """
    batches: list[MicroBatch] = []
    for first in range(0, len(cut), accumulation):
        step = cut[first : first + accumulation]
        totals = sum(gather(_totals(step)), Totals(0, 0, 0))
        for numbered in step:
            samples = [s for _, s in numbered]
            weights = row_weights(loss_type, [s.num_loss_tokens for s in samples], totals, max_length)
            batches.append(micro_batch(samples, [n for n, _ in numbered], weights))
    return batches


def _totals(step: Sequence[Sequence[Numbered]]) -> Totals:
    return Totals(
        tokens=sum(s.num_loss_tokens for numbered in step for _, s in numbered),
        sequences=sum(len(numbered) for numbered in step),
        micro_batches=len(step),
    )
