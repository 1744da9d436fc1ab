"""Tokens, patches and bytes of the pictures in a run's prompts, measured with its own processor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING

from covey.errors import ConfigError
from covey.forecast.seeing import PictureDemand
from covey.forecast.tower_sizes import first_of, patches_of
from covey.types import Prompt
from covey.vision.eyes import ProcessorEyes, size_of, with_pixel_limits
from covey.vision.sight import Sight

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PictureLengths:
    """Sizes of the pictures of the prompts that were measured."""

    pictures: int
    prompts: int
    """With a picture."""
    least: int
    """Tokens of the picture with the fewest."""
    median: int
    most: int
    pixels: int
    """Bytes that the processor makes of the picture with the most tokens."""
    demand: PictureDemand
    """Of the prompt with the most tokens of pictures."""
    halved: tuple[int, int] | None
    """A value of max_pixels, and the tokens that it leaves the largest picture; None: the family's pictures have fixed sizes."""

    def __str__(self) -> str:
        each = f"{self.least} to {self.most} tokens each, {self.median} in the middle"
        return (
            f"{self.pictures} in {self.prompts} prompts; {each}; {self.pixels / 1e6:.3g} MB of pixels at most"
        )


def picture_lengths(
    eyes: ProcessorEyes, model: PreTrainedModel, prompts: Sequence[Prompt], rows: int, is_eager: bool
) -> PictureLengths | None:
    """Return what the pictures of these prompts take; None where there is none.

    Args:
        model: of the run, without its weights.
        prompts: read with these eyes.
        rows: of the dataset that they stand for.
        is_eager: whether the tower's attention keeps its weights.
    """
    shown = [prompt for prompt in prompts if prompt.pictures]
    if not shown:
        return None
    alone = {size: eyes.of_size(size) for size in {p.size for prompt in shown for p in prompt.pictures}}
    tokens = [alone[p.size].num_places for prompt in shown for p in prompt.pictures]
    sights = [eyes.look(prompt.ids, prompt.pictures) for prompt in shown]
    full = max(sights, key=lambda sight: sight.num_places)
    largest = max(alone.values(), key=lambda sight: sight.num_places)
    mean = sum(map(size_of, sights)) / len(prompts)
    return PictureLengths(
        pictures=len(tokens),
        prompts=len(shown),
        least=min(tokens),
        median=median_low(tokens),
        most=largest.num_places,
        pixels=size_of(largest),
        demand=PictureDemand(
            tokens=full.num_places,
            patches=patches_of(model, full.inputs),
            largest=patches_of(model, largest.inputs),
            pixels=size_of(full),
            held=int(min(eyes.most_bytes, max(size_of(full), mean * rows))),
            is_eager=is_eager,
        ),
        halved=_halved(eyes, model, alone, largest),
    )


def _halved(
    eyes: ProcessorEyes, model: PreTrainedModel, sizes: Iterable[tuple[int, int]], largest: Sight
) -> tuple[int, int] | None:
    """Return a value of max_pixels that halves the tokens of the largest picture, and the most that any has then."""
    patch = first_of(model.get_encoder(modality="image").config, "patch_size")
    side = patch if isinstance(patch, int) else patch[0]
    limit = patches_of(model, largest.inputs) * side * side // 2
    try:
        smaller = ProcessorEyes(with_pixel_limits(eyes.processor, None, limit), model, eyes.limits)
    except ConfigError:
        return None
    left = max(smaller.of_size(size).num_places for size in sizes)
    return (limit, left) if left < largest.num_places else None
