"""Bytes that pictures take: the tower that looks at them, what it keeps, its features, and the pixels. Pure; all of one process.

What a layer of a tower keeps for the backward pass was counted in every family (`tests/vision/test_forecast_sees.py` counts again):
per patch, two numbers of the stream in the precision of the weights, and in that of the products 6 per hidden unit (two norms; queries,
keys, values; the output), 2 more where norms divide by a root mean square, 3 more where queries and keys are rotated, 2 more where
layers are scaled, 1 more for each norm beyond two; per unit of the MLP 2, 3 for a "quick" GELU, 4 where it is gated. Masks of padding
(Gemma 4) are not counted: a number for each two patches of a picture. With checkpointing a layer keeps its input alone. A tower that
is not trained keeps nothing; its features are made once in a rollout, where what joins it to the decoder is not trained either.
"""

from __future__ import annotations

from dataclasses import dataclass

PIXEL_BYTES = 4
"""Processors give float32."""


@dataclass(frozen=True)
class Tower:
    """Numbers of what looks at pictures: the tower, and what joins it to the decoder."""

    weights: int
    """Of both."""
    trained: int
    quantised: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    widths: int
    """Tensors of the hidden width that a layer keeps, beside the stream."""
    inner: int
    """Tensors of the intermediate width that a layer keeps."""
    depths: int = 1
    """Features for each token of a picture: those that are embedded, and those that are added behind layers of the decoder."""
    keeps: bool = True
    """Whether its layers keep anything for the backward pass: something in them is trained."""


@dataclass(frozen=True)
class PictureDemand:
    """Sizes of the pictures of the fullest prompt, and of those of the run."""

    tokens: int
    """That stand for pictures in the prompt with most of them."""
    patches: int
    """Of all its pictures."""
    largest: int
    """Patches of its largest picture."""
    pixels: int
    """Bytes that its processor makes of it."""
    held: int
    """Bytes of pixels that are held at once, on the host."""
    is_eager: bool = False
    """Whether attention keeps its weights, patch by patch."""


def tower_layer(tower: Tower, shown: PictureDemand, weight_bytes: int, compute_bytes: int) -> float:
    """Return the bytes that one layer keeps of the pictures of a prompt."""
    units = tower.widths * tower.hidden + tower.inner * tower.intermediate
    squares = 2 * shown.largest * tower.heads * compute_bytes if shown.is_eager else 0
    return shown.patches * (2.0 * weight_bytes * tower.hidden + compute_bytes * units + squares)


def tower_activations(
    tower: Tower, shown: PictureDemand, weight_bytes: int, compute_bytes: int, is_checkpointed: bool
) -> float:
    """Return the bytes of the tower's activations in a pass over the pictures of a prompt: the layer at work, and what is kept."""
    layer = tower_layer(tower, shown, weight_bytes, compute_bytes)
    if not tower.keeps:
        return layer
    if not is_checkpointed:
        return layer * tower.layers
    return 2 * layer + float(shown.patches * tower.hidden * weight_bytes * tower.layers)


def on_device(shown: PictureDemand, compute_bytes: int) -> float:
    """Return the bytes of a prompt's pixels where the tower reads them: as they came, and in a lower precision beside."""
    return float(shown.pixels) * (1 + (compute_bytes / PIXEL_BYTES if compute_bytes < PIXEL_BYTES else 0))


def features(tower: Tower, shown: PictureDemand, hidden: int, width_bytes: int) -> float:
    """Return the bytes of the features of a prompt's pictures, as wide as the decoder."""
    return float(shown.tokens * hidden * tower.depths * width_bytes)


def tower_share(
    tower: Tower, shown: PictureDemand, decoder: int, prompt: float, written: float, passes: float
) -> float:
    """Return the part of a step's products that the tower does, from 0 to 1, for one group of completions.

    A product is a weight times a token or patch. Sampling reads prompt and completions once. The update goes forward once (twice with
    checkpointing) and backward once, which counts as two.

    Args:
        decoder: weights that each token meets.
        prompt, written: tokens of a prompt, and of all its completions.
        passes: of the update, in units of a forward pass.
    """
    looks = 1 + (passes if tower.keeps else 1.0)
    seen = tower.weights * shown.patches * looks
    read = decoder * (prompt + written) * (1 + passes)
    return seen / (seen + read)
