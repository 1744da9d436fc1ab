"""Checks of what would otherwise be found at the first checkpoint, or never: once, before anything is sampled."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import GenerationConfig, PreTrainedTokenizerBase

from covey.config import GRPOConfig
from covey.errors import ConfigError, LoadingError, warn


def check(
    args: GRPOConfig,
    policy: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: Optimizer | None,
    trains: bool,
) -> None:
    """Raise where a run could not train or could not be saved; where it only evaluates, nothing is asked of it.

    Raises:
        ConfigError, LoadingError: it could not.
    """
    if not trains:
        return
    check_trained_weights(policy)
    if optimizer is not None:
        check_optimizer(optimizer, policy)
    check_output_dir(args)
    check_saving(args, policy, tokenizer)


def check_output_dir(args: GRPOConfig) -> None:
    """Raise where nothing can be written into output_dir; a folder that is not there is made.

    Raises:
        ConfigError: it is a file, or may not be written to.
    """
    folder = Path(args.output_dir or ".")
    try:
        if args.process_index == 0:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile("wb", dir=folder).close()
    except OSError as error:
        what = "is a file" if folder.is_file() else f"cannot be written to ({error.strerror or error})"
        raise ConfigError(
            f"output_dir={str(folder)!r} {what}. Give a folder for checkpoints and the run's record."
        ) from error


def check_trained_weights(policy: nn.Module) -> None:
    """Raise where no weight of the policy would be trained.

    Raises:
        LoadingError: every weight is frozen.
    """
    if any(p.requires_grad for p in policy.parameters()):
        return
    way = "Load it with PeftModel.from_pretrained(..., is_trainable=True), or give peft_config."
    if not hasattr(policy, "peft_config"):
        way = "Set requires_grad on those that are to be trained, or give peft_config for an adapter."
    raise LoadingError(f"No weight would be trained: every weight of the policy is frozen. {way}")


def check_optimizer(optimizer: Optimizer, policy: nn.Module) -> None:
    """Raise where an optimizer holds no weight of the policy; warn where it lacks some of those that can be trained.

    Raises:
        ConfigError: it holds other weights.
    """
    trained = {n: p for n, p in policy.named_parameters() if p.requires_grad}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left_out = [name for name, p in trained.items() if id(p) not in held]
    if len(left_out) == len(trained):
        raise ConfigError(
            f"optimizers: the optimizer holds {len(held)} weights, and none of the policy's {len(trained)} that can be trained "
            "(an adapter, or a model given by name, is made inside GRPOTrainer). Give the model as a module, and make the "
            "optimizer over its parameters, or name one with optim in GRPOConfig."
        )
    if left_out:
        warn(
            f"optimizers: the optimizer lacks {len(left_out)} of the {len(trained)} weights that can be trained: {left_out[0]!r} "
            "and others stay as they are. Freeze them (requires_grad_(False)) to save their gradients."
        )


def check_saving(args: GRPOConfig, policy: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise LoadingError where a checkpoint could not be written: configs and tokenizer are written once for nothing."""
    generation: GenerationConfig | None = getattr(policy, "generation_config", None)
    if generation is not None:
        mend(generation)
    parts = {"the generation config": generation, "the model's config": getattr(policy, "config", None)}
    parts |= {"the tokenizer": tokenizer} if args.save_strategy != "no" else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, part in parts.items():
            try:
                if part is not None:
                    part.save_pretrained(folder)
            except Exception as error:  # whatever it is, the first checkpoint would end in it
                raise LoadingError(
                    f"No checkpoint could be written: {name} cannot be saved ({type(error).__name__}: {str(error)[:500]}). "
                    "Mend it before the trainer is made."
                ) from error


def mend(config: GenerationConfig) -> None:
    """Let a generation config that sets sampling options without sampling, which transformers does not save, sample."""
    if config.do_sample is not True:
        try:
            config.validate(strict=True)
        except ValueError:
            config.do_sample = True
