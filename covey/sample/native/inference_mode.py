"""Prepares the policy for sampling, and restores it.

Sampling wants the model in eval mode, with a cache and without checkpointing (a checkpointed layer drops the cache).
All of it is restored exactly, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

Autocast = Callable[[], AbstractContextManager[object]]
"""Makes the context in which the policy computes, for example bfloat16 autocast."""


@contextmanager
def inference_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model in eval mode, without gradients, checkpointing switched off."""
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
