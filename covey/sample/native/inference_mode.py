"""Lends the policy to the sampler, and gives it back as it was.

Sampling wants the model in eval mode, with a cache and without checkpointing (a checkpointed layer drops the cache).
All of it is restored exactly, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def lent(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode, without gradients, checkpointing switched off."""
    modes = [(m, m.training) for m in model.modules()]
    checkpointed = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    try:
        model.eval()
        for module in checkpointed:
            module.gradient_checkpointing = False  # type: ignore[assignment]
        with torch.no_grad():
            yield model
    finally:
        for module, mode in modes:
            module.training = mode
        for module in checkpointed:
            module.gradient_checkpointing = True  # type: ignore[assignment]
