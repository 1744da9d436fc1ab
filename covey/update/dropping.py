"""Completions that cannot change an optimizer step do not go through the model.

A completion of advantage 0 has no gradient where nothing but the advantage moves its tokens: no divergence to the
reference in the loss, no entropy bonus, no loss that looks at its numbers for the sake of others. One that is masked has
none at all. The weights of those that stay were worked out with all of them, so the step is the same.

Metrics of the update (`entropy`, `clip_ratio/...`, `ratio/mean`) are over the completions that are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.update.samples import Sample


def contributing(samples: Sequence[Sample], weights: Sequence[float], every_row_is_needed: bool) -> list[int]:
    """Positions of the completions of a micro-batch that have to be computed; at least one.

    A micro-batch that holds nothing else keeps its shortest completion: under DDP and FSDP every process takes part in
    every forward and backward pass.

    Args:
        weights: what a token of each weighs; 0 where none enters the loss.
        every_row_is_needed: whether a completion of advantage 0 has a loss too.
    """
    kept = [
        number
        for number, (sample, weight) in enumerate(zip(samples, weights, strict=True))
        if weight and (every_row_is_needed or sample.advantage)
    ]
    if kept or not samples:
        return kept
    return [
        min(range(len(samples)), key=lambda i: len(samples[i].prompt.ids) + len(samples[i].completion.ids))
    ]
