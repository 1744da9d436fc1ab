"""Activations wait for the backward pass in the memory of the host instead of that of the GPU.

A checkpointed layer keeps its input; offloaded, a step needs the memory of one layer. Weights are not moved, nor tensors
too small to be worth the transfer. The copies of weights that autocast makes in half precision are
activations like others: without checkpointing a layer keeps them for its backward pass, and they are moved.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

LEAST_BYTES = 2**20
"""Smaller tensors stay on the GPU."""
HOST = "cpu"
"""Type of device that activations are moved to."""


def offloaded(model: nn.Module) -> AbstractContextManager[object]:
    """Return the context of a forward pass whose saved tensors go to the host."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters() if p.device.type != "meta"}

    def pack(saved: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        size = saved.numel() * saved.element_size()
        if size < LEAST_BYTES or saved.device.type == HOST or saved.untyped_storage().data_ptr() in weights:
            return saved
        moved = torch.empty(saved.shape, dtype=saved.dtype, pin_memory=True)
        moved.copy_(saved)
        return saved.device, moved

    def unpack(kept: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        device, moved = kept
        return moved.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
