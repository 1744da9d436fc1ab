"""Prepares a model for a forward pass of Covey's, and restores it.

Every pass wants logits and nothing else, whatever the config asks for besides. Sampling wants the model in eval mode too,
and without checkpointing (a checkpointed layer drops the cache). All of it is restored exactly, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

Autocast = Callable[[], AbstractContextManager[object]]
"""Makes the context in which the policy computes, for example bfloat16 autocast."""


ONLY_LOGITS = {
    "_output_attentions": False,
    "output_hidden_states": False,
    "output_router_logits": False,
    "return_dict": True,
}
"""Flags of a config under which a forward pass computes logits alone."""


@contextmanager
def logits_alone(model: nn.Module) -> Iterator[None]:
    """Let forward passes return logits alone, in an output with names."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [
        (config, name, vars(config)[name])
        for config in configs.values()
        for name in ONLY_LOGITS
        if name in getattr(config, "__dict__", ())
    ]
    try:
        for config, name, _ in before:
            vars(config)[name] = ONLY_LOGITS[name]
        yield
    finally:
        for config, name, value in before:
            vars(config)[name] = value


@contextmanager
def inference_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model in eval mode, without gradients, checkpointing switched off."""
    modes = [(m, m.training) for m in model.modules()]
    checkpointed = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    try:
        model.eval()
        for module in checkpointed:
            module.gradient_checkpointing = False  # type: ignore[assignment]
        with torch.no_grad(), logits_alone(model):
            yield model
    finally:
        for module, mode in modes:
            module.training = mode
        for module in checkpointed:
            module.gradient_checkpointing = True  # type: ignore[assignment]
