"""Settings of TRL that belong to engines and services which Covey does not drive.

All of an engine's settings follow the one that chooses it: they are taken, under one warning. What cannot be had is refused by
name, with what there is instead.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from covey.config.hardware import use_instead
from covey.config.validation import defaults, help_text
from covey.errors import ConfigError, warn

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

_VLLM = "Of vLLM, which Covey does not drive yet: goes with use_vllm, and has no effect."


@dataclass
class EngineSettings:
    """Settings of other engines than Covey's own, with TRL's defaults."""

    use_vllm: bool = help_text(False, "Not available yet: the native engine samples instead, with a warning.")
    vllm_mode: str = help_text("colocate", _VLLM)
    vllm_model_impl: str = help_text("vllm", _VLLM)
    vllm_enable_sleep_mode: bool = help_text(False, _VLLM)
    vllm_structured_outputs_regex: str | None = help_text(None, _VLLM)
    vllm_server_base_url: str | None = help_text(None, _VLLM)
    vllm_server_host: str = help_text("0.0.0.0", _VLLM)
    vllm_server_port: int = help_text(8000, _VLLM)
    vllm_server_timeout: float = help_text(240.0, _VLLM)
    vllm_group_port: int = help_text(51216, _VLLM)
    vllm_gpu_memory_utilization: float = help_text(0.3, _VLLM)
    vllm_max_model_length: int | None = help_text(None, _VLLM)
    vllm_tensor_parallel_size: int = help_text(1, _VLLM)
    use_transformers_paged: bool = help_text(
        False, "No effect: the native engine samples instead, with a warning."
    )
    use_transformers_continuous_batching: bool = help_text(
        False, "No effect: the native engine, in which sequences leave and enter, samples instead."
    )
    transformers_continuous_batching_config: dict[str, Any] | str | None = help_text(
        None, "Goes with use_transformers_continuous_batching, and has no effect."
    )
    cache_implementation: str | None = help_text(
        None, "No effect: the native engine keeps its own cache, with a warning."
    )


CHOOSERS = {
    "use_vllm": "Covey does not drive vLLM yet",
    "use_transformers_paged": "Covey does not drive transformers' paged generation",
    "use_transformers_continuous_batching": "Covey does not drive transformers' continuous batching",
    "cache_implementation": "it is the cache of transformers' generate, which is not called",
}
"""Settings that choose an engine, and why it is not used."""

NO_EFFECT = {
    "use_liger_kernel": "Covey's own head takes log-probabilities without holding all logits; Liger's kernels are not used",
    "cast_lm_head_to_fp32": "soft-max and sums over the vocabulary are float32 anyway; the product with the head is computed "
    "in the dtype of the model, which ModelConfig.dtype and bf16 say",
    "pad_to_multiple_of": "nothing is padded",
    "ds3_gather_for_generation": "the native engine gathers what it samples with",
    "liger_kernel_config": "Liger's kernels are not used",
    "include_num_input_tokens_seen": "num_tokens is logged at each step",
    "include_for_metrics": "compute_metrics gets prompts, completions and columns",
    "bf16_full_eval": "evaluation samples with the training's weights",
    "fp16_full_eval": "evaluation samples with the training's weights",
    "eval_accumulation_steps": "evaluation keeps no tensors",
    "eval_use_gather_object": "evaluation gathers all that it measured",
    "dataloader_drop_last": "what does not fill a round of sampling is always left out",
    "label_names": "there are no labels",
    "length_column_name": "prompts are drawn by shuffle_dataset",
}
"""Settings that other trainers need and this one does not: taken with one line that says why."""

REFUSED = {
    "max_tool_calling_iterations": "tools that the policy calls are not there yet; leave it out",
    "log_completions_hub_repo": "tables of completions are not uploaded yet; log_completions=True writes completions.jsonl "
    "in output_dir, which huggingface_hub.upload_file takes",
}
"""Settings of what is not there yet, and what to use instead."""


def resolve_engines(config: GRPOConfig) -> None:
    """Fall back to the native engine under one warning per engine, which names all of its settings that were given."""
    default = defaults(type(config))
    given = [f.name for f in fields(EngineSettings) if getattr(config, f.name) != default[f.name]]
    for chooser, reason in CHOOSERS.items():
        if chooser in given:
            family = chooser.removeprefix("use_")
            others = [n for n in given if n.startswith(family) and n != chooser]
            asked = f"{chooser}={getattr(config, chooser)!r}" + (
                f" (with {', '.join(others)})" if others else ""
            )
            use_instead(asked, reason, "the native engine", config.strict_hardware)
            given = [n for n in given if n not in (chooser, *others)]
    if given:
        warn(
            f"{', '.join(given)}: no effect, since the engine that it belongs to is not chosen, nor driven by Covey yet."
        )


def take_without_effect(config: GRPOConfig) -> None:
    """Say of each setting that this trainer does not need why; put it back to its default where transformers would act on it.

    Raises:
        ConfigError: a setting of something that is not there yet.
    """
    default = defaults(type(config)) | {"include_for_metrics": []}
    for name, reason in REFUSED.items():
        if getattr(config, name) is not None:
            raise ConfigError(f"{name}={getattr(config, name)!r} is not available: {reason}.")
    for name, reason in NO_EFFECT.items():
        value = getattr(config, name, None)
        if value not in (default.get(name), None, False) or (value is False and default.get(name) is True):
            warn(f"{name}={value!r} has no effect: {reason}.")
            setattr(config, name, default[name])
