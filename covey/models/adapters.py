"""Adapters of peft: put around a policy, loaded with their base, merged into its weights."""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import set_seed

from covey.errors import ConfigError, LoadingError
from covey.models.families import is_family
from covey.models.fitness import rows_of
from covey.models.inspect import innermost
from covey.models.loading import is_absent, load_policy, not_loaded, resolved_dtype
from covey.text.foreign import show

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


def with_adapter(
    policy: nn.Module, peft_config: PeftConfig | None, seed: int, reaches_eyes: bool = False
) -> nn.Module:
    """Return the policy inside a fresh adapter, its own weights frozen; as it is where there is no `peft_config`.

    Args:
        reaches_eyes: names of modules mean those of tower and projector too; otherwise the decoder's.

    Raises:
        LoadingError: it has an adapter already, or the adapter does not fit, or needs help, fresh or not.
        ConfigError: `reaches_eyes` without an adapter.
    """
    refuse_helpless((getattr(policy, "peft_config", None) or {}).values())
    if peft_config is None:
        if reaches_eyes:
            raise ConfigError(
                "lora_vision=True has no effect without a peft_config. Give one, or leave it out."
            )
        return policy
    from peft import PeftConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training

    if not isinstance(peft_config, PeftConfig):
        raise LoadingError(
            f"peft_config is {peft_config!r}; it must be a PeftConfig, such as peft.LoraConfig(r=16, "
            "target_modules='all-linear')."
        )
    refuse_helpless([peft_config], are_fresh=True)
    if isinstance(policy, PeftModel):
        raise LoadingError(
            "The model is a PeftModel already, and peft_config asks for another adapter. Pass one of the two, or merge the "
            "first adapter: model.merge_and_unload()."
        )
    if getattr(policy, "is_quantized", False):
        policy = prepare_model_for_kbit_training(policy, use_gradient_checkpointing=False)
    if not reaches_eyes:
        given, peft_config = peft_config, of_decoder(policy, peft_config)
        if peft_config is not given:
            show(
                f"The adapter is put into the decoder alone. Left as it is: {', '.join(eye_modules(policy))}; with lora_vision=True it is "
                "adapted too."
            )
    set_seed(seed)
    try:
        with without_retired_name():
            return get_peft_model(policy, peft_config)
    except Exception as error:  # peft raises whatever the model's modules do
        raise LoadingError(
            f"The adapter does not fit {type(policy).__name__}: {error} Name the modules, or use "
            "lora_target_modules='all-linear'."
        ) from error


def of_decoder(policy: nn.Module, adapter: PeftConfig) -> PeftConfig:
    """Return an adapter that leaves tower and projector of a policy that sees alone, unless it names modules by their paths.

    A name such as `q_proj` stands in decoders and in some towers, and `all-linear` means all: vision is then adapted unasked.
    """
    targets, taken = getattr(adapter, "target_modules", None), getattr(adapter, "exclude_modules", None)
    named = [targets] if isinstance(targets, str) else list(targets or ())
    is_bare = targets == "all-linear" or (not isinstance(targets, str) and not any("." in n for n in named))
    eyes = eye_modules(policy)
    if not eyes or not is_bare or taken or not hasattr(adapter, "exclude_modules"):
        return adapter
    changed = copy.copy(adapter)
    changed.exclude_modules = rf"(.*\.)?({'|'.join(map(re.escape, eyes))})(\..*)?"
    return changed


def eye_modules(policy: nn.Module) -> list[str]:
    """Return the paths of tower and projector of a policy that trains with pictures: what is neither decoder nor head."""
    model: Any = innermost(policy)
    if not is_family(getattr(model, "config", None)):
        return []
    kept = {id(part) for part in (model.get_decoder(), model.get_output_embeddings())}
    paths: list[str] = []
    outer: list[tuple[str, nn.Module]] = [("", model)]
    while outer:
        path, module = outer.pop(0)
        for name, part in module.named_children():
            place = f"{path}.{name}".lstrip(".")
            holds = any(id(inner) in kept for inner in part.modules())
            if id(part) not in kept and holds:
                outer.append((place, part))
            elif not holds:
                paths.append(place)
    return paths


NEED_HELP = {
    "ADALORA": "spreads its ranks during training, by importance that the trainer would have to measure after each step",
    "XLORA": "mixes adapters that are trained already, by a pass of its own before each pass",
    "POLY": "wants the number of a task with each row",
}
"""Kinds of adapters that train as they should only where the trainer helps them, and with what."""

VIRTUAL = "puts virtual tokens before every prompt, and Covey's log-probabilities do not know of them"
USE = "Use an adapter of the weights: LoRA or one of its kin (DoRA, rsLoRA, LoHa, OFT, IA3)."

NEED_DATA = ("eva", "corda", "lora_ga")
"""Ways to start an adapter that look at data first."""


def refuse_helpless(adapters: Iterable[PeftConfig], are_fresh: bool = False) -> None:
    """Refuse adapters that need more than a forward and a backward pass: they would train as something else, silently.

    Args:
        are_fresh: they are put around the policy now.

    Raises:
        LoadingError: one of them learns prompts, needs the trainer's help, or data before it starts.
    """
    for adapter in adapters:
        kind, name = str(getattr(adapter.peft_type, "value", adapter.peft_type)), type(adapter).__name__
        start = str(getattr(adapter, "init_lora_weights", "")).lower()
        does = VIRTUAL if getattr(adapter, "is_prompt_learning", False) else NEED_HELP.get(kind)
        if does:
            raise LoadingError(f"The adapter is a {name} ({kind}): it {does}. {USE}")
        if are_fresh and start in NEED_DATA:
            raise LoadingError(
                f"The adapter starts with init_lora_weights={start!r}, which looks at data before training. Make it with peft's own "
                "function for that, and pass the PeftModel in place of peft_config; or choose True, 'pissa' or 'gaussian'."
            )


def load_adapter(
    folder: str, base: str | None = None, init_kwargs: Mapping[str, object] | None = None
) -> PeftModel:
    """Return a saved adapter around its base model.

    Args:
        folder: what `save_pretrained` of a PeftModel wrote, or a checkpoint of a run that trains an adapter.
        base: the base model, where it is not where the adapter says.
        init_kwargs: arguments for loading the base model.

    Raises:
        LoadingError: there is no adapter, it needs help (see `refuse_helpless`), or its base cannot be loaded or does not fit.
    """
    from peft import PeftConfig, PeftModel

    try:
        config = PeftConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        if is_absent(folder):
            raise not_loaded("adapter", folder, error) from error
        raise LoadingError(f"{folder} holds no adapter: {error}") from error
    refuse_helpless([config])
    name = base or config.base_model_name_or_path
    if not name:
        raise LoadingError(
            f"The adapter in {folder} does not say which model it belongs to. Name its base model."
        )
    policy: Any = load_policy(name, init_kwargs)
    rows, had = embedding_rows(folder), rows_of(policy)
    if rows > had:  # the adapter was trained with tokens that its base does not have
        policy.resize_token_embeddings(rows, mean_resizing=False)
    try:
        with without_retired_name():
            return PeftModel.from_pretrained(policy, folder)
    except Exception as error:  # whatever a loader raises, the two do not fit
        sizes = f" Its embedding has {rows} rows, and that of the base {had}." if rows and rows != had else ""
        raise LoadingError(
            f"The adapter in {folder} does not fit its base {name}: {str(error)[:500]}{sizes} Name the base that it was trained on."
        ) from error


def embedding_rows(folder: str) -> int:
    """Return the rows of the embedding that was saved with an adapter; 0 where none was."""
    path = os.path.join(folder, "adapter_model.safetensors")
    if not os.path.isfile(path):
        return 0
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    words = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings")
    whole = [
        s[0] for n, s in shapes.items() if len(s) == 2 and "lora_" not in n and any(w in n for w in words)
    ]
    return max(whole, default=0)


def merge_adapter(
    policy: nn.Module,
    folder: str,
    processing: PreTrainedTokenizerBase | ProcessorMixin | None = None,
    *,
    keep: bool = True,
    dtype: str | torch.dtype | None = None,
) -> nn.Module:
    """Save the policy with its adapter merged into the weights, so that it loads without peft.

    Args:
        processing: the policy's tokenizer, or the processor of one that sees; is saved beside it.
        keep: the policy keeps its adapter, and a copy is merged; False merges in place and needs no second copy.
        dtype: precision of what is saved; that of the policy where None. The sum is made in the policy's own.

    Returns:
        The merged model, without an adapter.
    """
    from peft import PeftModel

    if not isinstance(policy, PeftModel):
        raise LoadingError(f"{type(policy).__name__} has no adapter to merge. Save it with save_pretrained.")
    merged: Any = (copy.deepcopy(policy) if keep else policy).merge_and_unload()
    saved_as = resolved_dtype(dtype)
    if isinstance(saved_as, torch.dtype):
        merged.to(saved_as)
    merged.save_pretrained(folder)
    if processing is not None:
        processing.save_pretrained(folder)
    return merged


@contextmanager
def without_retired_name() -> Iterator[None]:
    """Silence a warning that users can do nothing about: peft asks models for an attribute that transformers renames."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.* is deprecated", FutureWarning)
        yield
