"""Loading of policies and tokenizers by name or folder, with precision, attention and quantisation.

What the hardware lacks falls back with one warning (see `covey.config.hardware`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
)

from covey.config import ModelConfig
from covey.config.hardware import has_cuda, has_package, missing_to_see, use_instead
from covey.errors import LoadingError
from covey.models.families import FAMILIES, is_family
from covey.models.inspect import innermost
from covey.text.names import listed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin
    from transformers.utils.quantization_config import QuantizationConfigMixin

FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Package of each kind of flash attention."""


MOST_WORDS = 800
"""Letters of a foreign message that are passed on."""


def is_absent(name: str) -> bool:
    """Return whether a name means a folder that does not exist, so that it is not looked for on a hub.

    A hub's names have one slash at most, and start with neither / nor a dot.
    """
    means_folder = name.startswith(("/", ".", "~")) or "\\" in name or name.count("/") > 1
    return means_folder and not os.path.isdir(name)


def not_loaded(what: str, name: str, error: Exception) -> LoadingError:
    """Return the error that says why something cannot be loaded.

    Args:
        what: such as "policy".
        name: as it was given: a folder, or the name of a repository.
        error: what the loader raised.
    """
    reason = f"{type(error).__name__}: {error}" if not isinstance(error, OSError | ValueError) else str(error)
    if len(reason) > MOST_WORDS:  # transformers names all classes that it has
        reason = f"{reason[: MOST_WORDS // 2]} ... {reason[-MOST_WORDS // 4 :]}"
    if is_absent(name):
        there = "it is a file" if os.path.isfile(name) else "there is no such folder"
        reason = (
            f"{there} (looked for from {os.getcwd()}). Give the folder that holds its config.json, or the name of a "
            "repository, such as 'Qwen/Qwen2.5-0.5B-Instruct'."
        )
    return LoadingError(f"The {what} {name!r} cannot be loaded: {reason}")


def load_policy(
    model: str | nn.Module | ModelConfig,
    init_kwargs: Mapping[str, object] | None = None,
    *,
    trust_remote_code: bool = False,
    quantization_config: QuantizationConfigMixin | None = None,
    strict_hardware: bool = False,
) -> nn.Module:
    """Return the policy, from a name, a folder, a ModelConfig, or a module that is taken as it is.

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
    name = model_name(model)
    kwargs = {**(model.init_kwargs() if isinstance(model, ModelConfig) else {}), **(init_kwargs or {})}
    if quantization_config is not None:
        kwargs["quantization_config"] = quantization_config
    if trust_remote_code:
        kwargs["trust_remote_code"] = True
    kwargs = model_kwargs(kwargs, strict_hardware)
    return load_causal(name, kwargs)


def load_causal(name: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """Return the causal model in a folder, with its eyes where it has some, every weight of it read from there.

    Raises:
        LoadingError: it is none, cannot be read, or lacks weights.
    """
    config = config_of(name, kwargs)
    stored_as = "" if config is None else checked_config(name, config)
    loader = AutoModelForImageTextToText if is_family(config) else AutoModelForCausalLM
    try:
        found: Any = loader.from_pretrained(name, output_loading_info=True, **kwargs)
    except Exception as error:  # whatever a loader raises, the policy cannot be loaded
        if not stored_as:
            raise not_loaded("policy", name, error) from error
        raise LoadingError(
            f"The policy {name!r} is stored quantised ({stored_as}), and cannot be loaded: {str(error)[:MOST_WORDS]} Besides "
            "the package for this format it needs a GPU. Take the model that is not quantised; quantization_config quantises it."
        ) from error
    policy: nn.Module = found[0]
    made_up = sorted(found[1].get("missing_keys", ()))
    if made_up:
        raise LoadingError(
            f"The policy {name!r} has no weights for {listed(made_up, 8)}: they would be random. Give a folder with all "
            f"weights of a {type(policy).__name__}, or load the model yourself and pass the module."
        )
    return policy


def config_of(name: str, kwargs: Mapping[str, Any]) -> Any:
    """Return the config of a model in a folder, of an adapter that of its base.

    None where it cannot be read, which the loader's own error says better.
    """
    asked = {k: v for k, v in kwargs.items() if k in ("revision", "trust_remote_code", "subfolder", "token")}
    try:
        return kwargs.get("config") or AutoConfig.from_pretrained(name, **asked)
    except (OSError, ValueError, ImportError):
        base = base_of(name)
        return config_of(base, {"trust_remote_code": asked.get("trust_remote_code", False)}) if base else None


def base_of(name: str) -> str:
    """Return the model that an adapter in a folder was trained on; empty where the folder holds none, or it does not say."""
    path = os.path.join(name, "adapter_config.json")
    if not name or not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8") as file:
        try:
            base = json.load(file).get("base_model_name_or_path")
        except (ValueError, AttributeError):  # damaged: the loader says so
            return ""
    return base if isinstance(base, str) and base != name else ""


def checked_config(name: str, config: Any) -> str:
    """Return how the weights of a policy are quantised, as its config says; empty where they are not.

    Raises:
        LoadingError: it is an encoder-decoder, or of a family without a causal model.
    """
    is_known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or is_family(config) or "auto_map" in vars(config)
    if getattr(config, "is_encoder_decoder", False) or not is_known:
        why = (
            f"a model that reads pictures. Of these Covey trains {', '.join(FAMILIES)}."
            if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
            else "which is no causal language model: the policy must read its prompt and go on with it (a decoder, such as Llama, "
            "Qwen or Mamba)."
        )
        raise LoadingError(
            f"The policy {name!r} cannot be loaded: its config is of the kind {config.model_type!r}, {why}"
        )
    stored = getattr(config, "quantization_config", None)
    return quantisation(stored) if stored else ""


def quantisation(stored: Any) -> str:
    """Return in words how weights are stored, such as "gptq, 4 bits"."""
    words: dict[str, Any] = stored if isinstance(stored, dict) else stored.to_dict()
    bits = words.get("bits") or (4 if words.get("load_in_4bit") else 8 if words.get("load_in_8bit") else None)
    return f"{words.get('quant_method', 'bitsandbytes')}" + (f", {bits} bits" if bits else "")


def model_kwargs(given: Mapping[str, object], strict_hardware: bool = False) -> dict[str, object]:
    """Return arguments for from_pretrained: defaults filled in, what the hardware lacks replaced with a warning."""
    kwargs: dict[str, Any] = dict(given)
    if "torch_dtype" in kwargs:
        kwargs["dtype"] = kwargs.pop("torch_dtype")
    kwargs["dtype"] = resolved_dtype(kwargs.get("dtype", torch.float32))
    attention = kwargs.get("attn_implementation")
    if (
        isinstance(attention, str)
        and attention in FLASH
        and not (has_cuda() and has_package(FLASH[attention]))
    ):
        reason = "it needs a CUDA device and the package flash-attn"
        use_instead(f"attn_implementation={attention!r}", reason, "sdpa", strict_hardware)
        kwargs["attn_implementation"] = "sdpa"
    if kwargs.get("quantization_config") is not None and not (has_cuda() and has_package("bitsandbytes")):
        reason = "it needs a CUDA device and bitsandbytes"
        use_instead("quantization_config", reason, "full precision", strict_hardware)
        kwargs["quantization_config"] = None
    return {name: value for name, value in kwargs.items() if value is not None}


def resolved_dtype(dtype: str | torch.dtype | None) -> str | torch.dtype | None:
    """Return the dtype that a name stands for, as 'bfloat16' for torch.bfloat16; 'auto' stays.

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
    processing_class: PreTrainedTokenizerBase | ProcessorMixin | None,
    model: str | nn.Module | ModelConfig,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """Return the tokenizer that was given, taken out of its processor, or the one that belongs to the model.

    Raises:
        LoadingError: a module that does not say where its tokenizer is, or there is none.
    """
    if processing_class is not None:
        return tokenizer_of(processing_class)
    name = model_name(model)
    if not name:
        raise LoadingError("The model does not say where it came from. Pass processing_class, its tokenizer.")
    if base := base_of(name):
        name = home_of(name, base)
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a loader raises, the tokenizer cannot be loaded
        raise not_loaded("tokenizer of", name, error) from error


def tokenizer_of(processing_class: Any) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a processor, or the tokenizer that was given."""
    return cast("PreTrainedTokenizerBase", getattr(processing_class, "tokenizer", processing_class))


def load_processing_class(
    given: PreTrainedTokenizerBase | ProcessorMixin | None,
    model: str | nn.Module | ModelConfig,
    trust_remote_code: bool = False,
    base: str | None = None,
) -> PreTrainedTokenizerBase | ProcessorMixin:
    """Return what was given, or what belongs to the model: the processor of a policy that sees, a tokenizer of others.

    A folder may hold no processor, or pictures may need packages that are missing: text trains without.

    Args:
        base: of an adapter, where it is not the one that the adapter names.

    Raises:
        LoadingError: a module that does not say where its tokenizer is, or there is none.
        TypeError: what was given is neither a tokenizer nor has one.
    """
    if given is not None:
        if not hasattr(tokenizer_of(given), "pad_token_id"):
            raise TypeError(
                f"processing_class is a {type(given).__name__}; it must be a tokenizer, or the processor of a policy that sees, such as "
                "AutoProcessor.from_pretrained(name) gives. Left out, it is what belongs to the model."
            )
        return given
    name = model_name(model)
    base = base or base_of(name)
    if isinstance(model, nn.Module):
        own = getattr(innermost(model), "config", None)
    else:
        own = config_of(base or name, {"trust_remote_code": trust_remote_code})
    for folder in (name, base):
        if folder and (found := processor_for(own, folder, trust_remote_code)) is not None:
            return found
    return load_tokenizer(None, home_of(name, base) if base else model, trust_remote_code)


def processor_for(config: Any, name: str, trust_remote_code: bool = False) -> ProcessorMixin | None:
    """Return the processor in a folder or repository, for a policy of this config; None: there is none, or the policy reads text alone.

    Raises:
        LoadingError: there is one, and it cannot be loaded.
    """
    return load_processor(name, trust_remote_code) if is_family(config) and not missing_to_see() else None


def home_of(name: str, base: str) -> str:
    """Return where the tokenizer of an adapter is: beside it, or beside its base."""
    return name if os.path.isfile(os.path.join(name, "tokenizer_config.json")) else base


PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""One of them is in every folder with a processor for pictures."""


def load_processor(name: str, trust_remote_code: bool = False) -> ProcessorMixin | None:
    """Return the processor in a folder or repository; None where a folder holds none.

    Raises:
        LoadingError: there is one, and it cannot be loaded.
    """
    from transformers import AutoProcessor

    if os.path.isdir(name) and not any(os.path.isfile(os.path.join(name, f)) for f in PROCESSOR_FILES):
        return None
    try:
        found = AutoProcessor.from_pretrained(name, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a loader raises, the processor cannot be loaded
        raise not_loaded("processor of", name, error) from error
    return cast("ProcessorMixin", found) if hasattr(found, "image_processor") else None


def model_name(model: str | nn.Module | ModelConfig) -> str:
    """Return the name or folder that a model came from; empty for a module that does not say.

    Raises:
        LoadingError: it is no model, or a ModelConfig without a name.
    """
    if isinstance(model, str):
        return model
    if isinstance(model, ModelConfig):
        if not model.model_name_or_path:
            raise LoadingError("ModelConfig has no model_name_or_path. Give the model's name, or its folder.")
        return model.model_name_or_path
    if not isinstance(model, nn.Module):
        raise LoadingError(
            f"model is {model!r}; it must be the name or the folder of a causal language model, as text, a ModelConfig, or a "
            "loaded module."
        )
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


def switch_off_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in attributes that attention reads."""
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
