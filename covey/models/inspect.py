"""Facts about a causal language model, whatever it is wrapped in."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn


def innermost(model: nn.Module) -> nn.Module:
    """Return the causal model inside training wrappers and adapters."""
    current: Any = model
    while not hasattr(current, "config") and hasattr(current, "module"):
        current = current.module
    base = getattr(current, "get_base_model", None)
    inner: nn.Module = base() if callable(base) else current
    return inner


def accepted_arguments(model: nn.Module) -> set[str]:
    """Return the names of the arguments that the model's forward pass takes."""
    return set(inspect.signature(type(innermost(model)).forward).parameters)


def context_length(model: nn.Module) -> int | None:
    """Return the number of positions that the model was made for; None where it does not say."""
    config: Any = getattr(innermost(model), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    length = getattr(text, "max_position_embeddings", None)
    return int(length) if isinstance(length, int) and length > 0 else None


def embedding_rows(model: nn.Module) -> int | None:
    """Return the number of token ids that the model can read; None where its weights do not say, as where they are shared out."""
    embedding: Any = innermost(model)
    embedding = embedding.get_input_embeddings() if hasattr(embedding, "get_input_embeddings") else None
    weight = getattr(embedding, "weight", None)
    return (int(weight.shape[0]) or None) if isinstance(weight, torch.Tensor) else None


def compute_dtype(device: torch.device, own: torch.dtype) -> torch.dtype:
    """Return the dtype that matrix products have: that of autocast where it is on, or that of the operand."""
    is_on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_on else own
