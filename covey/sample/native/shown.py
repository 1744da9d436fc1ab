"""Pictures of prompts as the fast path reads them: embeddings in their places, angles along several axes, and what follows behind them.

The policy's own tower makes the embeddings, once for all prompts of a call, and its own module the angles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.errors import EngineError
from covey.kernels.rotary import rotation_table
from covey.models.inference_mode import Autocast, inference_mode
from covey.models.inspect import innermost
from covey.sample.native.chunked_prefill import PromptPart
from covey.sample.native.weights import Weights
from covey.types import Prompt, PromptKey
from covey.vision.features import encode
from covey.vision.sight import Eyes, Sight, joined


@dataclass(frozen=True)
class PromptPictures:
    """The pictures of one prompt; every tensor is on the device."""

    where: Tensor
    """Place of each token of a picture, shape (picture tokens,), ascending."""
    embedded: Tensor
    """What the first layer reads there, shape (picture tokens, hidden), float32."""
    deep: tuple[Tensor, ...]
    """By layer: what is added to the stream there behind it, each of the shape of `embedded`."""
    factors: Tensor | None
    """Complex factors of the rotary positions of the prompt, shape (tokens, head_dim / 2); None: those of a text."""
    shift: int
    """What is added to the place of a token behind the prompt to make its position."""


class PicturedChunk:
    """Pictures of prompts in one chunk of them.

    Args:
        parts: of the chunk, in order.
        shown: by number of the prompt; those that are missing are text.
    """

    def __init__(self, parts: Sequence[PromptPart], shown: Mapping[int, PromptPictures]) -> None:
        self.found: list[tuple[Tensor, slice, PromptPictures]] = []
        """Of each part with tokens of pictures: their rows in the chunk, and which of its prompt's they are."""
        self.turns: list[tuple[slice, Tensor]] = []
        """Rows of the chunk, and the factors of their rotary positions."""
        first = 0
        for part in parts:
            stop = first + part.stop - part.start
            if (its_own := shown.get(part.prompt)) is not None:
                bounds = torch.tensor([part.start, part.stop], device=its_own.where.device)
                begin, end = torch.searchsorted(its_own.where, bounds).tolist()
                rows = its_own.where[begin:end] + (first - part.start)
                self.found.append((rows, slice(begin, end), its_own))
                if its_own.factors is not None:
                    self.turns.append((slice(first, stop), its_own.factors[part.start : part.stop]))
            first = stop

    def embed(self, states: Tensor) -> None:
        """Put the pictures into the stream before the first layer, shape (tokens, hidden)."""
        for rows, which, shown in self.found:
            states[rows] = shown.embedded[which]

    def turned(self, factors: Tensor) -> Tensor:
        """Return the factors of rotary positions, shape (tokens, head_dim / 2), with those of prompts that have several axes."""
        for rows, its_own in self.turns:
            factors[rows] = its_own
        return factors

    def add(self, states: Tensor, layer: int) -> None:
        """Add to the stream what the tower gives behind a layer."""
        for rows, which, shown in self.found:
            if layer < len(shown.deep):
                states[rows] += shown.deep[layer][which]


def shown_by(
    eyes: Eyes, policy: nn.Module, autocast: Autocast, weights: Weights, prompts: Sequence[Prompt], most: int
) -> dict[PromptKey, PromptPictures]:
    """Return the pictures of prompts by the prompts' keys, those that are the same once; prompts of text alone are left out.

    Args:
        most: tokens of pictures that the tower reads at once; a prompt with more of them is read by itself.
    """
    sights = {p.key: eyes.look(p.ids, p.pictures) for p in prompts if p.pictures}
    result: dict[PromptKey, PromptPictures] = {}
    for keys in _slices({key: sight.num_places for key, sight in sights.items()}, most):
        inputs = joined([sights[key] for key in keys], weights.device)
        try:
            with inference_mode(policy), autocast():
                made = encode(innermost(policy), inputs, [sights[key].num_places for key in keys])
        except ValueError as error:
            raise EngineError(f"{error} Take the processor that belongs to the policy.") from error
        for key, features in zip(keys, made, strict=True):
            result[key] = _shown(weights, key[0], sights[key], *(layer.float() for layer in features.layers))
    return result


def _slices(tokens: Mapping[PromptKey, int], most: int) -> list[list[PromptKey]]:
    """Return the prompts in order, those together that have at most so many tokens."""
    slices: list[list[PromptKey]] = []
    room = 0
    for key, number in tokens.items():
        if number > room:
            slices.append([])
            room = max(most, number)
        slices[-1].append(key)
        room -= number
    return slices


def _shown(
    weights: Weights, ids: Sequence[int], sight: Sight, embedded: Tensor, *deep: Tensor
) -> PromptPictures:
    assert sight.places is not None
    factors, shift, device = None, 0, weights.device
    if sight.positions is not None:
        positions = sight.positions.to(device)[:, None]  # (axes, 1, tokens)
        cos, sin = weights.rotary(torch.zeros(1, device=device), positions)
        factors = rotation_table(cos[0], sin[0], weights.shape.turned, weights.shape.head_dim)
        shift = sight.next_position - len(ids)
        assert shift <= 0, "a picture takes no more positions than it has tokens"
    where = sight.places.nonzero().flatten().to(device)
    return PromptPictures(where, embedded, deep, factors, shift)
