"""Facts about a causal language model, whatever it is wrapped in."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn

PLAIN_LAYERS = frozenset(
    ("attention", "full_attention", "sliding_attention", "chunked_attention", "mlp", "moe", "dense", "sparse")
)
"""Kinds of layers, as configs name them, in which a token meets others by attention to single keys and values, or not at all."""

MIXERS = re.compile(
    "Mamba|Mixer|Conv(?!1D)|Recurrent|RNN|LSTM|Rwkv|Delta|Lightning|Linear.*Attention|SSM|Hyena|Indexer|Compress|Shift"
)
"""Names of classes in which a token meets others some other way. GPT-2's Conv1D is a linear layer."""

OTHER_SENSES = re.compile("vision|visual|image|audio|projector")
"""Names of modules that read no text."""

SENSES = ("image", "video", "audio")
"""What configs and tokenizers name placeholders after."""


def innermost(model: nn.Module) -> nn.Module:
    """Return the causal model inside compiled modules, training wrappers and adapters, whatever their order."""
    current: Any = model
    while True:
        parts, base = getattr(current, "_modules", {}), getattr(current, "get_base_model", None)
        if "_orig_mod" in parts:  # before anything else: a compiled module answers for the one inside
            current = parts["_orig_mod"]
        elif callable(base):
            current = base()
        elif not hasattr(current, "config") and hasattr(current, "module"):
            current = current.module
        else:
            inner: nn.Module = current
            return inner


def text_config(model: nn.Module) -> Any:
    """Return the part of a model's config that describes the decoder of text; None where it has no config."""
    config: Any = getattr(innermost(model), "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def placeholder_ids(model: nn.Module, tokenizer: object = None) -> tuple[int, ...]:
    """Return the ids that stand for parts of pictures, videos or sound in the prompts of a model; none where it reads text alone.

    A completion with one of them could not be read: the model would ask for the picture.

    Args:
        tokenizer: says more of them, where the model reads other things than text.
    """
    own = _placeholders(getattr(innermost(model), "config", None))
    return tuple(sorted(own | _placeholders(tokenizer))) if own else ()


def _placeholders(source: object) -> set[int]:
    values = (getattr(source, f"{sense}_token_{kind}", None) for sense in SENSES for kind in ("id", "index"))
    return {value for value in values if isinstance(value, int) and value >= 0}


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the model that `torch.compile` has wrapped, or the model itself."""
    inner = getattr(model, "_modules", {}).get("_orig_mod")
    return model if inner is None else inner


def other_mixers(model: nn.Module) -> list[str]:
    """Return what in a model joins tokens other than by attention: recurrent states, convolutions, indices; empty for none.

    Asked of the architecture, because numbers do not tell: a state that leaks is small in a fresh model and grows in training.
    """
    causal: Any = innermost(model)
    text = text_config(causal)
    found = {kind for kind in getattr(text, "layer_types", None) or () if kind not in PLAIN_LAYERS}
    for path, module in causal.named_modules():
        name = type(module).__name__
        is_one = isinstance(module, nn.modules.conv._ConvNd | nn.RNNBase) or MIXERS.search(name)
        if is_one and not OTHER_SENSES.search(path):
            found.add(name)
    if not found and getattr(causal, "_is_stateful", False):
        found.add("a state")
    return sorted(found)


def accepted_arguments(model: nn.Module) -> set[str]:
    """Return the names of the arguments that the model's forward pass takes."""
    return set(inspect.signature(type(innermost(model)).forward).parameters)


def meaningless_ids(vocabulary: int, count: int) -> list[int]:
    """Return ids without a meaning, from all over a vocabulary: a text that any model can read."""
    return [(7919 * i + 13) % vocabulary for i in range(count)]


def context_length(model: nn.Module) -> int | None:
    """Return the number of positions that the model was made for; None where it does not say."""
    text = text_config(model)
    length = getattr(text, "max_position_embeddings", None)
    return int(length) if isinstance(length, int) and length > 0 else None


def compute_dtype(device: torch.device, own: torch.dtype) -> torch.dtype:
    """Return the dtype that matrix products have: that of autocast where it is on, or that of the operand."""
    is_on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_on else own
