"""Features of pictures, prompt by prompt: made once by the tower of a policy, given to as many rows as show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from covey.models.allocators import memory_for

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOOKING = (
    "Memory ran out while the tower looked at the pictures of {} prompt(s), which are {} tokens. Make them smaller (max_pixels; covey "
    "plan says what it saves), or show fewer at a time (per_device_train_batch_size)."
)


@dataclass(frozen=True, eq=False)
class Features:
    """The features that stand in the place of the picture tokens of one prompt."""

    form: Any
    """Class of the tower's output, and whether its features, and those behind layers, stand there in one piece: the policy takes them so."""
    layers: tuple[Tensor, ...]
    """Features as they are embedded, then those that are added behind each of the first layers, if any. Each (tokens, hidden)."""


def encode(model: Any, inputs: Mapping[str, Tensor], counts: Sequence[int]) -> list[Features]:
    """Return the features of several prompts by one call of the tower, the model's `get_image_features`, whose inputs are joined.

    Args:
        counts: picture tokens of each.

    Raises:
        ValueError: the tower gives another number of features than there are tokens.
        torch.OutOfMemoryError: there is no memory for it; says how many tokens the pictures have.
    """
    # Under autocast and in half precision a tower's first layer may take nothing but its own dtype.
    typed = {n: x.to(model.dtype) if x.is_floating_point() else x for n, x in inputs.items()}
    with memory_for(LOOKING.format(len(counts), sum(counts))):
        output = model.get_image_features(**typed, return_dict=True)
    whole, deep = output.pooler_output, getattr(output, "deepstack_features", None)
    layers = [_flat(whole), *map(_flat, deep or ())]
    if len(layers[0]) != sum(counts):
        raise ValueError(
            f"{type(model).__name__} makes {len(layers[0])} features of pictures for {sum(counts)} tokens that stand for them."
        )
    form = type(output), isinstance(whole, Tensor), deep and isinstance(deep[0], Tensor)
    return [Features(form, part) for part in zip(*(x.split(list(counts)) for x in layers), strict=True)]


def given(features: Sequence[Features]) -> dict[str, Any]:
    """Return the argument `mm_encoder_outputs` for a pass that shows these, in this order."""
    kind, is_whole, deep_is_whole = features[0].form
    first, *deep = (torch.cat(parts) for parts in zip(*(f.layers for f in features), strict=True))
    more = {"deepstack_features": [d if deep_is_whole else (d,) for d in deep]} if deep else {}
    return {"image": kind(pooler_output=first if is_whole else (first,), **more)}


def _flat(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Return features of pictures, in whatever pieces, as (tokens, hidden)."""
    if isinstance(features, Tensor):
        return features.flatten(0, -2)
    return torch.cat([part.flatten(0, -2) for part in features])


def freeze(model: PreTrainedModel, projector: bool) -> bool:
    """Leave a policy's tower as it is in training, and with `projector` what joins it to the decoder; return whether that is another part."""
    tower = {id(p) for p in model.get_encoder(modality="image").parameters()}
    seeing = sees_with(model)
    for parameter in seeing:
        if projector or id(parameter) in tower:
            parameter.requires_grad_(False)
    return any(id(parameter) not in tower for parameter in seeing)


def sees_with(model: PreTrainedModel) -> list[nn.Parameter]:
    """Return the weights that pictures go through before they are embedded: tower, projector and what joins them."""
    head = model.get_output_embeddings()
    others = {id(p) for part in (model.get_decoder(), head) if part is not None for p in part.parameters()}
    return [p for p in model.parameters() if id(p) not in others]


def experts_of_pictures(model: PreTrainedModel) -> list[nn.Parameter]:
    """Return the weights of the decoder that tokens of pictures alone go through; none where it treats all tokens alike."""
    named = model.get_decoder().named_parameters()
    return [p for n, p in named if ".vision_moe." in n and p.requires_grad]
