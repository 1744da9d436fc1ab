"""Names → policy, tokenizer, adapter, reward model.

The real loading code of a run: hub names and folders, precision, attention, quantisation, adapters. What the hardware
lacks falls back with one warning (see `covey.config.hardware`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, set_seed

from covey.config import ModelConfig
from covey.config.hardware import has_cuda, has_package, use_instead
from covey.errors import LoadingError
from covey.models.folders import is_absent, not_loaded

FLASH = ("flash_attention_2", "flash_attention_3")


def load_policy(
    model: str | nn.Module | ModelConfig,
    init_kwargs: dict[str, Any] | None = None,
    *,
    trust_remote_code: bool = False,
    quantization_config: Any = None,
    strict_hardware: bool = False,
) -> nn.Module:
    """The policy, from a name, a folder, a ModelConfig, or a module that is taken as it is.

    Weights are loaded in float32 unless `init_kwargs` names a dtype: they are the master weights of the run, and a
    learning rate of 1e-6 is lost in the rounding of bfloat16.

    Raises:
        LoadingError: arguments for a module that is loaded already, or a model that cannot be loaded.
    """
    if isinstance(model, nn.Module):
        if init_kwargs or quantization_config is not None:
            raise LoadingError(
                "model_init_kwargs and quantization_config are for a model given by name; this one is loaded already. "
                "Leave them out, or pass the name."
            )
        return model
    _check_is_model(model)
    kwargs = dict(init_kwargs or {})
    if isinstance(model, ModelConfig):
        kwargs = {**model.init_kwargs(), **kwargs}
        model = _name_of(model)
    if quantization_config is not None:
        kwargs["quantization_config"] = quantization_config
    if trust_remote_code:
        kwargs["trust_remote_code"] = True
    return _from_pretrained(model, model_kwargs(kwargs, strict_hardware))


def model_kwargs(given: dict[str, Any], strict_hardware: bool = False) -> dict[str, Any]:
    """Arguments for from_pretrained: defaults filled in, what the hardware lacks replaced with a warning."""
    kwargs = dict(given)
    if "torch_dtype" in kwargs:
        kwargs["dtype"] = kwargs.pop("torch_dtype")
    kwargs["dtype"] = resolved_dtype(kwargs.get("dtype", torch.float32))
    attention = kwargs.get("attn_implementation")
    if attention in FLASH and not (has_cuda() and _has_flash(attention)):
        reason = "it needs a CUDA device and the package flash-attn"
        use_instead(f"attn_implementation={attention!r}", reason, "sdpa", strict_hardware)
        kwargs["attn_implementation"] = "sdpa"
    if kwargs.get("quantization_config") is not None and not (has_cuda() and has_package("bitsandbytes")):
        reason = "it needs a CUDA device and bitsandbytes"
        use_instead("quantization_config", reason, "full precision", strict_hardware)
        kwargs["quantization_config"] = None
    return {name: value for name, value in kwargs.items() if value is not None}


def resolved_dtype(dtype: str | torch.dtype | None) -> str | torch.dtype | None:
    """'bfloat16' → torch.bfloat16; 'auto' stays.

    Raises:
        LoadingError: no such dtype.
    """
    if not isinstance(dtype, str) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise LoadingError(
            f"dtype is {dtype!r}; it must be 'auto' or a dtype of torch, such as 'float32' or 'bfloat16'."
        )
    return found


def load_tokenizer(
    processing_class: Any, model: str | nn.Module | ModelConfig, trust_remote_code: bool = False
) -> Any:
    """The tokenizer that was given, or the one that belongs to the model. A processor's tokenizer is taken out of it.

    Raises:
        LoadingError: a module that does not say where its tokenizer is, or there is none.
    """
    if processing_class is not None:
        return getattr(processing_class, "tokenizer", processing_class)
    _check_is_model(model)
    name = model_name(model)
    if not name:
        raise LoadingError(
            "The model does not say where it came from. Pass its tokenizer as processing_class."
        )
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise not_loaded("tokenizer of", name, error) from error


def _check_is_model(model: Any) -> None:
    if not isinstance(model, str | nn.Module | ModelConfig):
        raise LoadingError(
            f"model is {model!r}; it must be the name or the folder of a causal language model, as text, a ModelConfig, or a "
            "loaded module."
        )


def model_name(model: str | nn.Module | ModelConfig) -> str:
    """Where a model came from; empty if it does not say."""
    if isinstance(model, ModelConfig):
        return _name_of(model)
    if isinstance(model, str):
        return model
    config = getattr(model, "config", None)
    return str(getattr(config, "_name_or_path", "") or "")


def with_adapter(policy: nn.Module, peft_config: Any, seed: int) -> nn.Module:
    """The policy inside a fresh adapter, its own weights frozen; as it is where there is no `peft_config`.

    Raises:
        LoadingError: it has an adapter already, or the adapter does not fit, or it learns prompts, fresh or not.
    """
    refuse_learned_prompts((getattr(policy, "peft_config", None) or {}).values())
    if peft_config is None:
        return policy
    from peft import PeftConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training

    if not isinstance(peft_config, PeftConfig):
        raise LoadingError(
            f"peft_config is {peft_config!r}; it must be a PeftConfig, such as peft.LoraConfig(r=16, "
            "target_modules='all-linear')."
        )
    refuse_learned_prompts([peft_config])
    if isinstance(policy, PeftModel):
        raise LoadingError(
            "The model is a PeftModel already, and peft_config asks for another adapter. Pass one of the two, or merge the "
            "first adapter: model.merge_and_unload()."
        )
    if getattr(policy, "is_quantized", False):
        policy = prepare_model_for_kbit_training(policy, use_gradient_checkpointing=False)
    set_seed(seed)
    try:
        with without_retired_name():
            return get_peft_model(policy, peft_config)
    except ValueError as error:
        raise LoadingError(
            f"The adapter does not fit {type(policy).__name__}: {error} Name the modules, or use "
            "lora_target_modules='all-linear'."
        ) from error


def refuse_learned_prompts(adapters: Iterable[Any]) -> None:
    """Refuse adapters that put virtual tokens before every row: positions would be counted without them.

    Args:
        adapters: configurations of peft.

    Raises:
        LoadingError: one of them learns prompts.
    """
    for adapter in adapters:
        if getattr(adapter, "is_prompt_learning", False):
            kind = getattr(adapter.peft_type, "value", adapter.peft_type)
            raise LoadingError(
                f"The adapter is a {type(adapter).__name__} ({kind}): it puts virtual tokens before every prompt, and Covey's "
                "log-probabilities do not know of them. Use an adapter of the weights: LoRA or one of its kin (DoRA, rsLoRA, "
                "LoHa, OFT, IA3)."
            )


def switch_off_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in attributes that attention reads."""
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def check_causal(model: nn.Module) -> None:
    """Refuse what cannot be sampled from.

    Raises:
        LoadingError: the model has no head over the vocabulary.
    """
    if not hasattr(model, "generation_config") and not hasattr(model, "get_base_model"):
        raise LoadingError(
            f"{type(model).__name__} cannot be sampled from. The policy must be a causal language model: its name, a folder, "
            "an AutoModelForCausalLM, or a PeftModel around one."
        )


def generation_config(model: nn.Module) -> GenerationConfig | None:
    """The generation config that came with the model; only its end ids are used."""
    return getattr(model, "generation_config", None)


def load_adapter(
    folder: str, base: str | None = None, init_kwargs: dict[str, Any] | None = None
) -> nn.Module:
    """A saved adapter around its base model.

    Args:
        folder: what `save_pretrained` of a PeftModel wrote, or a checkpoint of a run that trains an adapter.
        base: the base model, where it is not where the adapter says.
        init_kwargs: arguments for loading the base model.

    Raises:
        LoadingError: there is no adapter, it learns prompts, or its base model cannot be loaded.
    """
    from peft import PeftConfig, PeftModel

    try:
        config = PeftConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        if is_absent(folder):
            raise not_loaded("adapter", folder, error) from error
        raise LoadingError(f"{folder} holds no adapter: {error}") from error
    refuse_learned_prompts([config])
    name = base or config.base_model_name_or_path
    if not name:
        raise LoadingError(
            f"The adapter in {folder} does not say which model it belongs to. Name its base model."
        )
    policy: Any = load_policy(name, init_kwargs)
    with without_retired_name():
        return PeftModel.from_pretrained(policy, folder)


@contextmanager
def without_retired_name() -> Iterator[None]:
    """peft asks models for an attribute that transformers renames; its users can do nothing about the warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.* is deprecated", FutureWarning)
        yield


def merge_adapter(
    policy: nn.Module,
    folder: str,
    tokenizer: Any = None,
    *,
    keep: bool = True,
    dtype: str | torch.dtype | None = None,
) -> nn.Module:
    """Save the policy with its adapter merged into the weights, so that it loads without peft.

    Args:
        keep: the policy keeps its adapter, and a copy is merged; False merges in place and needs no second copy.
        dtype: precision of what is saved; that of the policy where None. The sum is made in the policy's own.
    """
    from peft import PeftModel

    if not isinstance(policy, PeftModel):
        raise LoadingError(f"{type(policy).__name__} has no adapter to merge. Save it with save_pretrained.")
    merged: Any = (copy.deepcopy(policy) if keep else policy).merge_and_unload()
    saved_as = resolved_dtype(dtype)
    if isinstance(saved_as, torch.dtype):
        merged.to(saved_as)
    merged.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return merged


def _name_of(config: ModelConfig) -> str:
    if not config.model_name_or_path:
        raise LoadingError("ModelConfig has no model_name_or_path. Give the model's name, or its folder.")
    return config.model_name_or_path


def _from_pretrained(name: str, kwargs: dict[str, Any]) -> nn.Module:
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(name, **kwargs)
    except (OSError, ValueError) as error:
        raise not_loaded("policy", name, error) from error
    return model


def _has_flash(attention: str) -> bool:
    return has_package("flash_attn" if attention == "flash_attention_2" else "flash_attn_interface")
