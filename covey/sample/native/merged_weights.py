"""A module's weights as it computes with them now: adapters added, quantisation undone, shards gathered.

Nothing of the policy is changed. Plain weights are returned as they are, so that no copy is made where none is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn


def effective(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer, an embedding or a norm; the bias is None where there is none.

    The tensors are the module's own where it is plain, and must not be written to.
    """
    module = _unwrapped(module)
    if not hasattr(module, "base_layer"):
        return _full(_dequantised(module)), _full(getattr(module, "bias", None))
    return _with_adapters(module)


def is_sharded(policy: nn.Module) -> bool:
    """Whether several processes hold parts of the weights (FSDP2, DeepSpeed ZeRO-3).

    Each of them has to take part in every forward pass of the model.
    """
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return several and any(hasattr(p, "full_tensor") or hasattr(p, "ds_id") for p in policy.parameters())


def _unwrapped(module: Any) -> Any:
    """The module that is used of a peft wrapper that holds a trained copy beside the original."""
    if not hasattr(module, "original_module") or not hasattr(module, "modules_to_save"):
        return module
    if module.disable_adapters or not module.active_adapters:
        return module.original_module
    return module.modules_to_save[module.active_adapters[0]]


def _with_adapters(module: Any) -> tuple[Tensor, Tensor | None]:
    base = module.get_base_layer()
    weight, bias = _full(_dequantised(base)), _full(getattr(base, "bias", None))
    names = [] if module.disable_adapters else _unmerged(module)
    if not names:
        return weight, bias
    if not all(_is_plain_lora(module, name) for name in names):
        return _merged_copy(module)
    weight = weight.float()
    with gathered(list(module.parameters())):
        for name in names:
            weight = weight + module.get_delta_weight(name).to(weight)
            if getattr(module, "lora_bias", {}).get(name, False):
                added = module.lora_B[name].bias.detach() * module.scaling[name]
                bias = added if bias is None else bias + added
    return weight, bias


def _unmerged(module: Any) -> list[str]:
    """Active adapters that this layer has, and that are not in its weight already."""
    has = module._available_adapters if hasattr(module, "_available_adapters") else module.active_adapters
    has = has() if callable(has) else has
    return [n for n in module.active_adapters if n in has and n not in module.merged_adapters]


def _is_plain_lora(module: Any, name: str) -> bool:
    """Whether the adapter adds B·A·scale to the weight (arXiv:2106.09685), and nothing else but a bias."""
    return (
        hasattr(module, "lora_A")
        and name not in getattr(module, "lora_variant", {})
        and not getattr(module, "use_dora", {}).get(name, False)
    )


def _merged_copy(module: Any) -> tuple[Tensor, Tensor | None]:
    """What peft's own merge gives, done in a copy of the layer."""
    with gathered(list(module.parameters())):
        merged = copy.deepcopy(module)
    merged.merge()
    base = merged.get_base_layer()
    return _dequantised(base).detach(), _full(getattr(base, "bias", None))


def _dequantised(module: Any) -> Tensor:
    weight = module.weight
    if type(weight).__name__ not in ("Params4bit", "Int8Params") and not hasattr(module, "W_q"):
        return weight
    from peft.utils.integrations import dequantize_module_weight

    return dequantize_module_weight(module)


def _full(tensor: Tensor | None) -> Any:
    """The whole of a tensor that may be a shard (FSDP2's DTensor, DeepSpeed ZeRO-3)."""
    if tensor is None:
        return None
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor().detach()
    if hasattr(tensor, "ds_id"):
        with gathered([tensor]):
            return tensor.detach().clone()
    return tensor.detach()


@contextmanager
def gathered(parameters: Sequence[Any]) -> Iterator[None]:
    """Parameters that DeepSpeed ZeRO-3 has sharded are whole inside; nothing happens to others."""
    sharded = [p for p in parameters if hasattr(p, "ds_id")]
    if not sharded:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(sharded):
        yield
