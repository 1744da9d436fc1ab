"""Names that scripts know from other trainers: arguments, methods and attributes that are not here, each with what to use.

A name that is taken and then does nothing is worse than an error: the run looks right and is another one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from transformers import Trainer

from covey.config import GRPOConfig
from covey.config.grpo import OWN
from covey.errors import ConfigError, warn
from covey.models.loading import tokenizer_of

if TYPE_CHECKING:
    from covey.trainer.grpo_trainer import GRPOTrainer

ARGUMENTS = {
    "data_collator": "is not used: rows reach sampler and rewards as they are, and nothing is padded. Change the rows in the dataset",
    "ref_model": "is not taken: the reference is the policy as it is at the start. Set beta above 0 in GRPOConfig",
    "model_init": "is not taken: one trainer trains one policy. Give it as model, and make a trainer for each trial",
    "compute_loss_func": "is called loss here: a function of covey.update.terms.LossTerms",
    "preprocess_logits_for_metrics": "is not used: evaluation samples. compute_metrics gets the completions",
    "optimizer_cls_and_kwargs": "is not taken: give optimizers=(optimizer, scheduler), or optim and optim_args in GRPOConfig",
    "eval_dataset_name": "is not taken: give several evaluation sets as a dictionary, eval_dataset={name: rows}",
}
"""Arguments of other trainers' constructors."""

SAMPLES = "evaluation samples and scores: use trainer.evaluate(rows), or trainer.predict(rows), which returns rewards too"
REWARD = "a reward is a function of completions: give it as reward_funcs"
LOSS = "give a function of covey.update.terms.LossTerms as GRPOTrainer(loss=...)"
SAMPLER = "sampling is an engine's (covey.sample.engine.Engine): set trainer.engine"
HOOKS = {
    "_generate_and_score_completions": f"override get_batch_samples; {REWARD}; {SAMPLER}",
    "_generate": SAMPLER,
    "_generate_single_turn": SAMPLER,
    "_calculate_rewards": REWARD,
    "_compute_loss": f"{LOSS}, or override compute_loss",
    "compute_liger_loss": LOSS,
    "_get_per_token_logps": LOSS + "; log-probabilities are trainer.updater.logprobs's",
    "_get_per_token_logps_and_entropies": LOSS + "; log-probabilities are trainer.updater.logprobs's",
    "_get_last_hidden_state": LOSS,
    "get_off_policy_mask": LOSS + ", or set off_policy_mask_threshold",
    "get_high_entropy_mask": LOSS + ", or set top_entropy_quantile",
    "_prepare_input": "micro-batches are tensors on the device already: override get_batch_samples",
    "_prepare_inputs": "micro-batches are tensors on the device already: override get_batch_samples",
    "_get_train_sampler": "set shuffle_dataset, or override get_train_dataloader",
    "_get_eval_sampler": SAMPLES,
    "_set_signature_columns_if_needed": "every column reaches the rewards",
    "get_eval_dataloader": SAMPLES,
    "get_test_dataloader": SAMPLES,
    "evaluation_loop": SAMPLES,
    "prediction_step": SAMPLES,
    "hyperparameter_search": "a trial changes the policy: make a GRPOTrainer for each trial",
}
"""Methods that other trainers call and this one does not."""

HIDDEN = {
    "_metrics": "rewards note numbers with log_metric(name, value); what was logged is in trainer.state.log_history",
    "_logs": "texts and columns are in completions.jsonl (log_completions=True) and in the run's record",
    "_textual_logs": "texts and columns are in completions.jsonl (log_completions=True) and in the run's record",
    "llm": "vLLM is a process of its own, which trainer.engine speaks to",
    "vllm_client": "vLLM is a process of its own, which trainer.engine speaks to",
    "vllm_generation": "vLLM is a process of its own, which trainer.engine speaks to",
}
"""Private attributes that scripts for other trainers reach for."""

SETTINGS = {
    name: name
    for name in OWN
    if name not in vars(Trainer) and name != "engine"  # which is the engine itself
} | {"epsilon_low": "epsilon"}
"""Settings that are attributes of the trainer too, by attribute."""

PARTS: Mapping[str, Callable[[Any], Any]] = {
    "reward_funcs": lambda t: [r.function for r in t.scorer.rewards],
    "reward_func_names": lambda t: [r.name for r in t.scorer.rewards],
    "reward_weights": lambda t: torch.tensor(list(t.run_log.rewards.values())),
    "reward_processing_classes": lambda t: [getattr(r.function, "tokenizer", None) for r in t.scorer.rewards],
    "ref_model": lambda t: reference_model(t),
    "aux_loss_enabled": lambda t: t.updater.forward.balances,
    "tools": lambda t: [] if t.agents.maker is None else list(t.agents.maker.tools),
    "environments": lambda t: getattr(t.agents.environments, "instances", None),
    "rollout_func": lambda t: t.agents.rollout,
    "use_vllm": lambda t: t.args.engine == "vllm",  # not where the native engine samples in its place
    "pad_token_id": lambda t: tokenizer_of(t.processing_class).pad_token_id,
    "eos_token_id": lambda t: tokenizer_of(t.processing_class).eos_token_id,
    "steps_per_generation": lambda t: t.plan.steps_per_generation,
    "generation_batch_size": lambda t: t.plan.micro_batch * t.plan.ranks * t.plan.steps_per_generation,
}
"""What is read of a trainer under another trainer's name, and how it is found."""


def checked_arguments(given: Mapping[str, Any], args: object, processing_class: Any) -> Any:
    """Return the policy's tokenizer, which may have come as `tokenizer`; raise ConfigError for what is not taken."""
    others = {name: value for name, value in given.items() if value is not None}  # None asks for nothing
    tokenizer = others.pop("tokenizer", None)
    for name in others:
        raise ConfigError(meant(name))
    if args is not None and not isinstance(args, GRPOConfig):
        is_data = hasattr(args, "__getitem__") or hasattr(args, "__iter__")
        way = "Give rows as train_dataset=." if is_data else "Give its fields to GRPOConfig(...)."
        raise ConfigError(f"args is a {type(args).__name__}; it must be a GRPOConfig. {way}")
    if tokenizer is None:
        return processing_class
    warn("tokenizer is taken as processing_class, which is its name since transformers 5.")
    if processing_class is not None:
        raise ConfigError(
            "tokenizer and processing_class are the same argument. Give processing_class alone."
        )
    return tokenizer


def meant(name: str) -> str:
    """Return what to say of an argument that GRPOTrainer lacks."""
    settings = inspect.signature(GRPOConfig).parameters
    if name in settings:
        return f"{name} is a setting: give it to GRPOConfig({name}=...), not to GRPOTrainer."
    if name in ARGUMENTS:
        return f"GRPOTrainer has no argument {name!r}: it {ARGUMENTS[name]}."
    own = (
        "model",
        "reward_funcs",
        "args",
        "train_dataset",
        "eval_dataset",
        "processing_class",
        "callbacks",
        "peft_config",
    )
    close = get_close_matches(name, (*own, *settings), 1)
    return f"GRPOTrainer has no argument {name!r}." + (f" Did you mean {close[0]}?" if close else "")


def check_hooks(cls: type, trainer: type) -> None:
    """Raise where a subclass overrides a method that is never called.

    Raises:
        ConfigError: it does; the message names the methods, and what to use instead.
    """
    own = cls.__mro__[: cls.__mro__.index(trainer)]
    dead = [name for name in HOOKS if any(name in vars(c) for c in own)]
    if dead:
        ways = "; ".join(f"{name}: {HOOKS[name]}" for name in dead)
        raise ConfigError(
            f"{cls.__name__} overrides {', '.join(dead)}, which GRPOTrainer never calls. Instead: {ways}."
        )


def read(trainer: GRPOTrainer, name: str) -> Any:
    """Return a setting or a part of the trainer under the name that scripts know.

    Raises:
        AttributeError: there is no such name.
    """
    if "args" in vars(trainer) and name in PARTS and "scorer" in vars(trainer):
        return PARTS[name](trainer)
    if "args" in vars(trainer) and name in SETTINGS:
        return getattr(trainer.args, SETTINGS[name])
    ways = {**HOOKS, **HIDDEN}.get(name)
    raise AttributeError(
        f"{type(trainer).__name__!r} object has no attribute {name!r}" + (f": {ways}" if ways else "")
    )


def assign(trainer: GRPOTrainer, name: str, value: Any) -> bool:
    """Assign to the setting that an attribute stands for, or raise; return False where it is an attribute like others."""
    if "run_log" not in vars(trainer):  # still under construction
        return False
    if name in HOOKS:
        raise ConfigError(f"GRPOTrainer never calls {name}. Instead: {HOOKS[name]}.")
    if name == "reward_weights":
        value = None if value is None else [float(weight) for weight in value]
    elif name in PARTS:
        raise ConfigError(
            f"trainer.{name} cannot be exchanged. Give it to GRPOTrainer(...), and make a trainer anew."
        )
    if name not in SETTINGS:
        return False
    setattr(trainer.args, SETTINGS[name], value)
    if not trainer.is_in_train:  # then it is heeded between two rounds of sampling
        trainer.heed_settings()
    return True


def refused(name: str) -> Callable[..., NoReturn]:
    """Return a method that says what to use in place of the inherited one."""

    def method(self: object, *_: object, **__: object) -> NoReturn:
        raise ConfigError(f"{name} does not work with GRPOTrainer: {HOOKS[name]}.")

    method.__name__, method.__doc__ = name, f"Raise: {HOOKS[name]}."
    return method


def reference_model(trainer: GRPOTrainer) -> nn.Module | None:
    """Return a copy of the policy with the reference's weights, made anew at each look; None where there is no reference."""
    reference = trainer.updater.reference
    if reference is None:
        return None
    with reference.swapped_into(trainer.model) as policy:
        return copy.deepcopy(policy).requires_grad_(False)
