"""The part of pictures in what the policy says: log-probabilities with each prompt's own pictures, and with grey ones in their places.

    effect = mean over sampled tokens of | log p(own pictures) − log p(grey) |, in nats

A policy that does not look at its pictures has 0: its projector says nothing, or the pictures do not reach it. Both sides are computed in
the same way, row by row, so that nothing but the pictures can move a number. Weights, random numbers and what the update remembers stay
as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from covey.metrics import Once
from covey.models.inference_mode import inference_mode
from covey.types import Picture
from covey.update.forward import plain_logprobs
from covey.update.micro_batch import MicroBatch, micro_batch
from covey.update.samples import Sample
from covey.vision.pictures import read_picture

if TYPE_CHECKING:
    from covey.update.forward import Forward

GREY = (128, 128, 128)
ROWS = 4
"""Completions of a pass: row by row, all logits of a pass are in memory."""


def picture_effect(
    forward: Forward, samples: Sequence[Sample], most: int, device: torch.device
) -> Once | None:
    """Return the effect of pictures on `most` completions at most, of as many prompts as there are; None where none sees a picture.

    Args:
        forward: of the policy; what it has found out about packing stays as it is.
    """
    shown = spread([s for s in samples if s.prompt.pictures and any(s.completion.loss_mask)])[:most]
    if forward.viewer is None or not shown:
        return None
    viewer = replace(forward.viewer, kept={})
    gap, count = 0.0, 0
    with inference_mode(forward.causal) as causal:
        for first in range(0, len(shown), ROWS):
            part = shown[first : first + ROWS]
            own = micro_batch(part, range(len(part)), [1.0] * len(part)).to(device)
            with_own, with_grey = (
                plain_logprobs(causal, batch, forward.temperature, viewer=viewer)[0]
                for batch in (own, in_grey(own))
            )
            gap += float((with_own - with_grey).double().abs()[own.mask].sum())
            count += int(own.mask.sum())
    return Once(gap, count)


def spread(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples in another order: first one of each group, then a second one, and so on."""
    seen: dict[int, int] = {}
    turns = []
    for sample in samples:
        seen[sample.group] = seen.get(sample.group, -1) + 1
        turns.append(seen[sample.group])
    return [samples[i] for i in sorted(range(len(samples)), key=turns.__getitem__)]


def in_grey(batch: MicroBatch) -> MicroBatch:
    """Return a batch with a grey picture of the same size in the place of each."""
    import PIL.Image

    grey: dict[tuple[int, int], Picture] = {}
    for size in {picture.size for shown in batch.pictures for picture in shown}:
        grey[size] = read_picture(PIL.Image.new("RGB", size, GREY))[0]
    return replace(batch, pictures=[tuple(grey[p.size] for p in shown) for shown in batch.pictures])
