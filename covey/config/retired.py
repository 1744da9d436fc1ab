"""Settings that transformers and TRL have retired: taken with one line of advice, and they act as they did where they can.

A script of last year trains. Each is a field, so that command lines and YAML files have it too; None: nobody gave it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey.config.validation import defaults, help_text
from covey.errors import ConfigError, warn

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

RENAMED = {
    "warmup_ratio": "warmup_steps",
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "xpu_backend": "ddp_backend",
    "torchdynamo": "torch_compile_backend",
    "use_liger_loss": "use_liger_kernel",
    "vllm_max_model_len": "vllm_max_model_length",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "wandb_log_unique_prompts": "log_unique_prompts",
}
"""Settings that live on under another name, with the same values."""

INSIDE = {
    "fsdp_min_num_params": ("fsdp_config", "min_num_params"),
    "fsdp_transformer_layer_cls_to_wrap": ("fsdp_config", "transformer_layer_cls_to_wrap"),
    "dispatch_batches": ("accelerator_config", "dispatch_batches"),
    "split_batches": ("accelerator_config", "split_batches"),
}
"""Settings that became an entry of another one, which is a mapping."""


@dataclass
class RetiredSettings:
    """Names that the present transformers and TRL have no more. The help says what took their place."""

    # --- another name, the same meaning
    warmup_ratio: float | None = help_text(
        None, "Retired. Use warmup_steps: below 1 it is a share of all steps."
    )
    evaluation_strategy: str | None = help_text(None, "Retired. Use eval_strategy.")
    no_cuda: bool | None = help_text(None, "Retired. Use use_cpu.")
    per_gpu_train_batch_size: int | None = help_text(None, "Retired. Use per_device_train_batch_size.")
    per_gpu_eval_batch_size: int | None = help_text(None, "Retired. Use per_device_eval_batch_size.")
    push_to_hub_model_id: str | None = help_text(None, "Retired. Use hub_model_id.")
    push_to_hub_organization: str | None = help_text(None, "Retired. Use hub_model_id='organization/name'.")
    push_to_hub_token: str | None = help_text(None, "Retired. Use hub_token.")
    xpu_backend: str | None = help_text(None, "Retired. Use ddp_backend.")
    torchdynamo: str | None = help_text(None, "Retired. Use torch_compile_backend.")
    use_liger_loss: bool | None = help_text(None, "Retired. Use use_liger_kernel.")
    vllm_max_model_len: int | None = help_text(None, "Retired. Use vllm_max_model_length.")
    vllm_guided_decoding_regex: str | None = help_text(None, "Retired. Use vllm_structured_outputs_regex.")
    wandb_log_unique_prompts: bool | None = help_text(None, "Retired. Use log_unique_prompts.")
    adafactor: bool | None = help_text(None, "Retired. Use optim='adafactor'.")
    fsdp_min_num_params: int | None = help_text(None, "Retired. Use fsdp_config={'min_num_params': ...}.")
    fsdp_transformer_layer_cls_to_wrap: str | None = help_text(
        None, "Retired. Use fsdp_config={'transformer_layer_cls_to_wrap': ...}."
    )
    dispatch_batches: bool | None = help_text(
        None, "Retired. Use accelerator_config={'dispatch_batches': ...}."
    )
    split_batches: bool | None = help_text(None, "Retired. Use accelerator_config={'split_batches': ...}.")

    # --- nothing is left for them to do
    overwrite_output_dir: bool | None = help_text(
        None,
        "Retired, no effect: train(resume_from_checkpoint=...) says whether a run goes on; an earlier record is moved aside.",
    )
    logging_dir: str | None = help_text(
        None, "Retired, no effect: the environment variable TENSORBOARD_LOGGING_DIR says where, instead."
    )
    save_safetensors: bool | None = help_text(None, "Retired, no effect: weights are saved as safetensors.")
    use_mps_device: bool | None = help_text(None, "Retired, no effect: the device is found; use_cpu=True.")
    group_by_length: bool | None = help_text(
        None, "Retired, no effect: prompts are drawn by shuffle_dataset; a forward pass holds no padding."
    )
    include_inputs_for_metrics: bool | None = help_text(
        None, "Retired, no effect: compute_metrics gets prompts, completions and columns."
    )
    include_tokens_per_second: bool | None = help_text(
        None, "Retired, no effect: num_tokens and seconds are logged at each step."
    )
    evaluate_during_training: bool | None = help_text(
        None, "Retired, no effect: use eval_strategy='steps' instead."
    )
    fp16_opt_level: str | None = help_text(None, "Retired with Apex, no effect: bf16 or fp16 is enough.")
    fp16_backend: str | None = help_text(None, "Retired, no effect: torch's own is used instead.")
    half_precision_backend: str | None = help_text(None, "Retired, no effect: torch's own is used instead.")
    jit_mode_eval: bool | None = help_text(None, "Retired, no effect: evaluation samples.")
    use_ipex: bool | None = help_text(None, "Retired, no effect: torch's own operators are used instead.")
    use_legacy_prediction_loop: bool | None = help_text(None, "Retired, no effect: evaluation samples.")
    past_index: int | None = help_text(None, "Retired, no effect: the sampler keeps its cache itself.")
    mp_parameters: str | None = help_text(None, "Retired with SageMaker's model parallelism, no effect.")
    sharded_ddp: str | None = help_text(None, "Retired with fairscale, no effect: use fsdp instead.")
    ray_scope: str | None = help_text(None, "Retired, no effect: hyperparameter search says it instead.")
    tpu_num_cores: int | None = help_text(None, "Retired, no effect: the launcher says it instead.")
    tpu_metrics_debug: bool | None = help_text(
        None, "Retired, no effect: use debug='tpu_metrics_debug' instead."
    )
    vllm_device: str | None = help_text(None, "Retired, no effect: it said where vLLM's weights are.")
    vllm_dtype: str | None = help_text(None, "Retired, no effect: the sampler has the policy's dtype.")
    vllm_enable_prefix_caching: bool | None = help_text(
        None, "Retired, no effect: each prompt is read once anyway."
    )
    dataset_num_proc: int | None = help_text(
        None, "Retired, no effect: prompts are tokenised when they are drawn."
    )


def read_retired(config: GRPOConfig) -> None:
    """Move what came under a retired name to its present one, and say so; then the retired one is None again.

    Raises:
        ConfigError: the retired name says another thing than the present one.
    """
    for name, field in RetiredSettings.__dataclass_fields__.items():
        value = getattr(config, name)
        if value is None:
            continue
        setattr(config, name, None)
        warn(f"{name}={value!r}: {field.metadata['help']}")
        if name == "push_to_hub_model_id" and config.push_to_hub_organization is not None:
            value = f"{config.push_to_hub_organization}/{value}"
        if name in RENAMED:
            move(config, name, RENAMED[name], value)
        elif name == "adafactor" and value:
            move(config, name, "optim", "adafactor")
        elif name in INSIDE:
            move_inside(config, name, *INSIDE[name], value)


def move(config: GRPOConfig, name: str, new: str, value: object) -> None:
    """Give the present name the value of the retired one."""
    present = getattr(config, new)
    if present not in (defaults(type(config))[new], value):
        raise ConfigError(
            f"{name}={value!r} is the retired name of {new}, which is {present!r}. Give {new} alone."
        )
    setattr(config, new, value)


def move_inside(config: GRPOConfig, name: str, outer: str, inner: str, value: object) -> None:
    """Give the mapping that is the present setting the value of the retired one."""
    given: Any = getattr(config, outer) or {}
    if not isinstance(given, dict) or given.get(inner, value) != value:
        raise ConfigError(
            f"{name}={value!r} is retired, and {outer} is {given!r}. Say it in {outer} alone: {inner!r}."
        )
    setattr(config, outer, {**given, inner: value})
