"""Bytes that the keys and values of a batch may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from covey.models.inspect import innermost

SHARE = 0.6
"""Part of the free memory that the cache may take by default; the rest is for activations and logits."""

CGROUP = Path("/sys/fs/cgroup")


def cache_budget(device: torch.device) -> int:
    """Return the bytes that a cache on this device may take by default."""
    return int(SHARE * free_bytes(device))


def free_bytes(device: torch.device) -> int:
    """Return the bytes that can still be allocated on a device; on a CPU within the container's limit, if it has one."""
    if device.type == "cuda":
        held_back = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held_back
    machine = psutil.virtual_memory()
    try:  # control groups, version 2
        limit = (CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        limit = "max"
    if limit == "max":
        return int(machine.available)
    return min(int(machine.available), max(0, int(limit) - used))


def cache_bytes_per_token(policy: nn.Module) -> int:
    """Return the bytes of keys and values per token, at the precision of the weights.

    Reckoned from the config as if every layer kept all of them, so hybrid and sliding models get more than they need.
    """
    config: Any = getattr(innermost(policy), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    layers = int(getattr(text, "num_hidden_layers", 0) or 32)
    hidden = int(getattr(text, "hidden_size", 0) or 4096)
    heads = int(getattr(text, "num_attention_heads", 0) or 1)
    kv_heads = int(getattr(text, "num_key_value_heads", 0) or heads)
    head_dim = int(getattr(text, "head_dim", 0) or hidden // heads)
    itemsize = next(policy.parameters()).element_size()
    return 2 * layers * kv_heads * head_dim * itemsize
