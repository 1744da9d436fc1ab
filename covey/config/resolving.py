"""Resolving of settings that come in another form, by another name, or depend on the machine."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from covey.config.choices import completions_share
from covey.config.hardware import computes_bf16, has_accelerator, has_mps, use_instead
from covey.config.validation import defaults
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

ALIASES = {
    "vllm_importance_sampling_correction": "importance_sampling_correction",
    "vllm_importance_sampling_mode": "importance_sampling_mode",
    "vllm_importance_sampling_cap": "importance_sampling_cap",
    "vllm_importance_sampling_clip_max": "importance_sampling_cap",
    "vllm_importance_sampling_clip_min": "importance_sampling_floor",
}
"""TRL's names of settings that have another name here."""


MAPPINGS = (
    "model_init_kwargs",
    "generation_kwargs",
    "eval_generation_kwargs",
    "chat_template_kwargs",
    "liger_kernel_config",
    "transformers_continuous_batching_config",
    "engine_args",
    "task_shares",
)
"""Settings that a command line gives as a JSON object; those of TrainingArguments are read there."""

WATCHING = ("reduce_lr_on_plateau", "greedy")
"""Schedules that go by a metric of evaluation."""


def read_text(config: GRPOConfig) -> None:
    """Replace what a command line gives as text: mappings as JSON, the share of recorded groups, and words for False; and the two
    values of `scale_rewards` that are no words.

    Raises:
        ConfigError: text that is no such thing, or a value that is no mapping.
    """
    if isinstance(config.record_completions, str):
        with contextlib.suppress(ValueError):
            config.record_completions = float(config.record_completions)
    completions_share(config.record_completions)
    if isinstance(config.trackio_static_space_id, str) and config.trackio_static_space_id.lower() == "false":
        config.trackio_static_space_id = False
    if isinstance(config.scale_rewards, bool):
        config.scale_rewards = "group" if config.scale_rewards else "none"
    if config.optim_target_modules == ["all-linear"]:
        config.optim_target_modules = "all-linear"
    for name in MAPPINGS:
        setattr(config, name, mapping(name, getattr(config, name)))


def mapping(name: str, value: object) -> dict[str, object] | None:
    """Return a mapping that may have come as a JSON object.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"{name} is not a JSON object: {error}. It came as {str(value)[:80]!r}."
            ) from error
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}; it must be a mapping, or a JSON object as text.")
    return value


def resolve_best_metric(config: GRPOConfig) -> None:
    """Let what goes by a metric of evaluation go by the reward, where no metric is named."""
    watches = config.lr_scheduler_type in WATCHING or config.save_strategy == "best"
    if (watches or config.load_best_model_at_end) and config.metric_for_best_model is None:
        config.metric_for_best_model = "reward"


def resolve_watching_schedule(config: GRPOConfig) -> None:
    """Tell a schedule that goes by a metric which way is better; by itself it takes less for better, as of a loss."""
    if config.lr_scheduler_type in WATCHING:
        direction = "max" if config.greater_is_better else "min"
        given = config.lr_scheduler_kwargs
        config.lr_scheduler_kwargs = {"mode": direction, **(given if isinstance(given, dict) else {})}


def read_aliases(config: GRPOConfig) -> None:
    """Move values of TRL's names, and of its older spellings, to ours; raise where both names have one."""
    default = defaults(type(config))
    for alias, name in ALIASES.items():
        value = getattr(config, alias)
        if value is None:
            continue
        if getattr(config, name) not in (default[name], value):
            raise ConfigError(
                f"{alias}={value!r} and {name}={getattr(config, name)!r} are the same setting. Give one of them."
            )
        setattr(config, name, value)


def resolve_checkpointing(config: GRPOConfig) -> None:
    """Switch checkpointing on by default, under the name of the installed transformers.

    transformers 5.24 calls it activation checkpointing; both names work here, and nothing warns.
    """
    if not hasattr(config, "activation_checkpointing"):
        config.gradient_checkpointing = config.gradient_checkpointing is not False
        return
    if config.activation_checkpointing is None:
        config.activation_checkpointing = config.gradient_checkpointing is not False
    if config.activation_checkpointing_kwargs is None:
        config.activation_checkpointing_kwargs = config.gradient_checkpointing_kwargs
    config.gradient_checkpointing = config.gradient_checkpointing_kwargs = None


def resolve_hardware(config: GRPOConfig) -> None:
    """Replace what the hardware lacks, with a warning for each."""
    if has_mps() and not config.use_cpu:
        reason = "sampling draws in float64, which it lacks (use_cpu=True chooses the CPU)"
        use_instead("Apple's MPS", reason, "the CPU", config.strict_hardware)
    if not has_accelerator():
        config.use_cpu = True
    if config.activation_offloading and config.use_cpu:
        reason = "activations are in the host's memory already"
        use_instead("activation_offloading=True", reason, "the host's memory", config.strict_hardware)
        config.activation_offloading = False
    if config.bf16 is None:
        config.bf16 = not config.fp16 and not config.use_cpu and computes_bf16(on_cpu=False)
    elif config.bf16 and not computes_bf16(config.use_cpu):
        use_instead("bf16=True", "this machine has no bfloat16 arithmetic", "float32", config.strict_hardware)
        config.bf16 = False
    if config.fp16 and config.use_cpu:
        use_instead("fp16=True", "float16 training needs a GPU", "float32", config.strict_hardware)
        config.fp16 = False
