"""Settings of other trainers that this one does not need, or does not have yet.

They are taken with the reason why nothing is done, or refused by name with what there is instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey.config.validation import defaults
from covey.errors import ConfigError, warn

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

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
    "log_completions_hub_repo": "tables of completions are not uploaded yet; log_completions=True writes completions.jsonl "
    "in output_dir, which huggingface_hub.upload_file takes",
}
"""Settings of what is not there yet, and what to use instead."""


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
