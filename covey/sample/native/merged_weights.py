"""A module's weights as it computes with them now: adapters added, quantisation undone, shards gathered.

Nothing of the policy is changed. Plain weights are returned as they are, so that no copy is made where none is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn

MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


def merged_weights(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a linear layer, an embedding or a norm; the bias is None where there is none.

    The tensors are the module's own where it is plain, and must not be written to.
    """
    used: Any = module
    if hasattr(used, "original_module") and hasattr(used, "modules_to_save"):
        # A peft wrapper that holds a trained copy beside the original.
        is_off = used.disable_adapters or not used.active_adapters
        used = used.original_module if is_off else used.modules_to_save[used.active_adapters[0]]
    if hasattr(used, "base_layer"):
        return _with_adapters(used)
    return whole(_dequantised(used)), whole(getattr(used, "bias", None))


def is_sharded(policy: nn.Module) -> bool:
    """Return whether several processes hold parts of the weights (FSDP2, DeepSpeed ZeRO-3).

    Each of them has to take part in every forward pass of the model.
    """
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return several and any(hasattr(p, "full_tensor") or hasattr(p, "ds_id") for p in policy.parameters())


def _with_adapters(module: Any) -> tuple[Tensor, Tensor | None]:
    """Return the same for a layer of peft."""
    base = module.get_base_layer()
    weight, bias = whole(_dequantised(base)), whole(getattr(base, "bias", None))
    if module.disable_adapters:
        return weight, bias
    # Active adapters that this layer has, and that are not in its weight already.
    has = module._available_adapters if hasattr(module, "_available_adapters") else module.active_adapters
    has = has() if callable(has) else has
    names = [n for n in module.active_adapters if n in has and n not in module.merged_adapters]
    if not names:
        return weight, bias
    # Plain LoRA adds B·A·scale to the weight (arXiv:2106.09685), and nothing else but a bias.
    variants, uses_dora = getattr(module, "lora_variant", {}), getattr(module, "use_dora", {})
    if not hasattr(module, "lora_A") or any(name in variants or uses_dora.get(name) for name in names):
        with gathered(list(module.parameters())):
            merged = copy.deepcopy(module)
        merged.merge()  # peft's own, in the copy
        base = merged.get_base_layer()
        return _dequantised(base).detach(), whole(getattr(base, "bias", None))
    weight = weight.float()
    with gathered(list(module.parameters())):
        for name in names:
            weight = weight + module.get_delta_weight(name).to(weight)
            if getattr(module, "lora_bias", {}).get(name, False):
                added = module.lora_B[name].bias.detach() * module.scaling[name]
                bias = added if bias is None else bias + added
    return weight, bias


def _dequantised(module: Any) -> Tensor:
    weight: Tensor = module.weight
    if type(weight).__name__ not in ("Params4bit", "Int8Params") and not hasattr(module, "W_q"):
        return weight
    from peft.utils.integrations import dequantize_module_weight

    return dequantize_module_weight(module)


def whole(tensor: MaybeTensor) -> MaybeTensor:
    """Return the whole of a tensor that may be a shard (FSDP2's DTensor, DeepSpeed ZeRO-3)."""
    if tensor is None:
        return tensor
    if hasattr(tensor, "full_tensor"):
        gathered_: Tensor = tensor.full_tensor()
        return gathered_.detach()
    if hasattr(tensor, "ds_id"):
        with gathered([tensor]):
            return tensor.detach().clone()
    return tensor.detach()


@contextmanager
def gathered(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Make parameters that DeepSpeed ZeRO-3 has sharded whole inside; nothing happens to others."""
    sharded = [p for p in parameters if hasattr(p, "ds_id")]
    if not sharded:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(sharded):
        yield
