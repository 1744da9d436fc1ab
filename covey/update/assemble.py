"""The samples of a window → micro-batches, weighed over the whole optimizer step, without those that cannot change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from covey.update.dropping import contributing
from covey.update.micro_batch import MicroBatch, micro_batch
from covey.update.reduction import Reduction, Totals, row_weights
from covey.update.samples import Sample

Numbered = tuple[int, Sample]
"""A sample and its number within the window."""


def assemble(
    cut: Sequence[Sequence[Numbered]],
    accumulation: int,
    reduction: Reduction,
    gather: Callable[[Any], list[Any]],
    every_row_is_needed: bool = True,
) -> list[MicroBatch]:
    """Micro-batches with the weights of their rows.

    Args:
        cut: the samples of each micro-batch of this process, in order.
        accumulation: micro-batches per optimizer step.
        reduction: how their losses are summed.
        gather: every process's value; called once per optimizer step.
        every_row_is_needed: False leaves out the rows that cannot change the step, see `covey.update.dropping`.
    """
    batches: list[MicroBatch] = []
    for first in range(0, len(cut), accumulation):
        step = cut[first : first + accumulation]
        own = sum((Totals.of([s for _, s in n], reduction.truncated) for n in step), Totals())
        totals = sum(gather(own), Totals())
        batches += [_micro_batch(numbered, reduction, totals, every_row_is_needed) for numbered in step]
    return batches


def _micro_batch(
    numbered: Sequence[Numbered], reduction: Reduction, totals: Totals, every_row_is_needed: bool
) -> MicroBatch:
    samples = [s for _, s in numbered]
    weights = row_weights(reduction, samples, totals)
    kept = contributing(samples, weights, every_row_is_needed)
    batch = micro_batch(
        [samples[i] for i in kept], [numbered[i][0] for i in kept], [weights[i] for i in kept]
    )
    batch.num_dropped = len(samples) - len(kept)
    return batch
