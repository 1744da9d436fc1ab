"""Ranges of single settings, and settings that contradict one another.

Raises:
    ConfigError: a setting is wrong.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from transformers import TrainingArguments

from covey.config.allocation_settings import check_allocation_settings
from covey.config.async_settings import check_async_settings
from covey.config.choices import LOSS_TYPES
from covey.config.curriculum_settings import check_curriculum_settings
from covey.config.no_effect import without_effect
from covey.config.replay_settings import check_replay_settings
from covey.config.sampling_names import lacks_policy_logprobs
from covey.config.task_settings import check_task_settings
from covey.config.tool_settings import check_tool_settings
from covey.config.validation import at_least, defaults, not_negative, within
from covey.config.vision_settings import check_vision_settings
from covey.errors import ConfigError, warn

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

WITHOUT_EFFECT = {
    "label_smoothing_factor": "there are no labels",
    "prediction_loss_only": "evaluation computes no loss",
    "batch_eval_metrics": "evaluation computes no loss",
    "auto_find_batch_size": "the batch size is part of the plan",
    "train_sampling_strategy": "prompts are drawn by shuffle_dataset",
    "neftune_noise_alpha": "noise on the embeddings would make ratios and KL meaningless",
}
"""Settings of TrainingArguments that GRPO does not use, and why."""


COUNTS = {
    "num_generations_eval": 1,
    "max_prompt_length": 1,
    "max_completion_length": 1,
    "num_completions_to_print": 0,
    "dynamic_sampling_rounds": 1,
    "num_iterations": 1,
    "max_nonfinite_steps": 1,
    "max_tokens_per_forward": 1,
    "ref_model_sync_steps": 1,
    "max_tool_calling_iterations": 0,
    "max_turn_length": 1,
    "max_tool_result": 1,
    "tool_concurrency": 1,
    "async_lag": 0,
    "max_staleness": 0,
    "replay_groups": 0,
    "replay_age": 1,
}
"""Whole numbers, and the least that each can be. None passes here: where it means nothing, its kind was refused."""


MOST = float("inf")
TRAINING = {
    "per_device_train_batch_size": (1, MOST),
    "per_device_eval_batch_size": (1, MOST),
    "gradient_accumulation_steps": (1, MOST),
    "weight_decay": (0, MOST),
    "adam_beta1": (0, 1),
    "adam_beta2": (0, 1),
    "adam_epsilon": (0, MOST),
    "max_grad_norm": (0, MOST),
    "warmup_steps": (0, MOST),
    "logging_steps": (0, MOST),
    "save_steps": (0, MOST),
    "eval_steps": (0, MOST),
    "eval_delay": (0, MOST),
    "seed": (0, 2**32 - 1),
    "data_seed": (0, 2**32 - 1),
    "dataloader_num_workers": (0, MOST),
    "ddp_timeout": (1, MOST),
    "router_aux_loss_coef": (0, MOST),
}
"""Numbers of TrainingArguments, and between what they lie; the optimizer's decays lie below 1."""


def check_training(config: GRPOConfig) -> None:
    """Raise where a number that transformers would pass on is out of its range; None for max_grad_norm is no limit."""
    if config.max_grad_norm is None:
        config.max_grad_norm = 0.0
    for name, (low, high) in TRAINING.items():
        value = getattr(config, name)
        is_right = value is None or low <= value <= high
        if name.startswith("adam_beta"):
            is_right = low <= value < high
        if not is_right:
            span = f"{low:g} or more" if high == MOST else f"between {low:g} and {high:g}"
            raise ConfigError(f"{name} is {value}; it must be {span}.")
    for name in ("logging", "save"):
        if getattr(config, f"{name}_strategy") == "steps" and not getattr(config, f"{name}_steps"):
            raise ConfigError(
                f"{name}_steps is 0: give the steps from one to the next, or set {name}_strategy='no'."
            )


def check_all(config: GRPOConfig) -> None:
    """Raise where a setting of Covey's own is out of its range, contradicts another one, or has no effect."""
    check_counts(config)
    check_sampling(config)
    check_bounds(config)
    check_level(config)
    check_terms(config)
    check_sampler_correction(config)
    check_tool_settings(config)
    check_async_settings(config)
    check_allocation_settings(config)
    check_curriculum_settings(config)
    check_task_settings(config)
    check_replay_settings(config)
    check_vision_settings(config)
    check_no_effect(config)


def check_counts(config: GRPOConfig) -> None:
    """Raise where a count, the length of the run or that of a step is wrong."""
    not_negative("learning_rate", config.learning_rate, "the length of a step downhill")
    if config.max_steps == 0:
        raise ConfigError(
            "max_steps is 0: a run of zero steps. Give the number of optimizer steps, or -1 to go by num_train_epochs."
        )
    if config.max_steps < 0 and not 0 < config.num_train_epochs < float("inf"):
        raise ConfigError(
            f"num_train_epochs is {config.num_train_epochs}; without max_steps it says how long the run is, and must be "
            "positive and finite. To evaluate without training, call trainer.evaluate()."
        )
    at_least("num_generations", config.num_generations, 2, "a completion is judged against its siblings")
    for name, least in COUNTS.items():
        if getattr(config, name) is not None:
            at_least(name, getattr(config, name), least)


def check_sampling(config: GRPOConfig) -> None:
    """Raise where the sampling distribution is wrong; warn where it makes the ratio biased."""
    if not 0.01 <= config.temperature < float("inf"):
        raise ConfigError(
            f"temperature is {config.temperature}; it must be at least 0.01. Towards 0 sampling becomes greedy, all "
            "completions of a prompt are the same, and there is nothing to learn from."
        )
    within("top_p", config.top_p, 0.0, 1.0)
    within("min_p", config.min_p or 0.0, 0.0, 1.0)
    if config.top_k < 0:
        raise ConfigError(f"top_k is {config.top_k}; give the number of tokens to sample from, 0 for all.")
    penalty = config.repetition_penalty
    if penalty <= 0:
        raise ConfigError(f"repetition_penalty is {penalty}; it must be positive, 1 for none.")
    if config.top_p < 1.0 or config.top_k or config.min_p or penalty != 1.0:
        warn(
            "Completions are drawn from another distribution than the one the loss is computed for (top_p, top_k, min_p "
            "or repetition_penalty): the ratio of the update is biased by as much. Leave them at their defaults unless "
            "you need them."
        )


def check_bounds(config: GRPOConfig) -> None:
    """Raise where the bounds of the ratio are wrong."""
    for name in ("epsilon", "epsilon_high"):
        not_negative(name, getattr(config, name), "a distance from 1")
    if config.loss_type == "cispo" and config.epsilon_high is None:
        bound = config.epsilon if config.cispo_bound == "absolute" else 1 + config.epsilon
        warn(
            f"loss_type='cispo' without epsilon_high: the weights of tokens are capped at {bound:g} (epsilon), as in TRL. With "
            "cispo_bound='absolute' epsilon_high is the cap itself, for example 5; with 'relative', the paper's, the cap "
            "is 1 + epsilon_high."
        )
    upper = 1 + (config.epsilon if config.epsilon_high is None else config.epsilon_high)
    if config.delta is not None and config.delta <= upper:
        raise ConfigError(
            f"delta is {config.delta}; it caps ratios beyond the upper clip bound and must be above {upper:g}."
        )


def check_level(config: GRPOConfig) -> None:
    """Warn where all tokens of a completion have one ratio, and completions weigh by their number of tokens."""
    counts_tokens = LOSS_TYPES[config.loss_type].reduction not in ("grpo", "luspo")
    if config.importance_sampling_level != "token" and counts_tokens:
        warn(
            f"importance_sampling_level={config.importance_sampling_level!r} gives the tokens of a completion one ratio, and "
            f"loss_type={config.loss_type!r} sums over tokens: a completion weighs by its length. GSPO, whose completions weigh "
            "the same, is loss_type='grpo' (arXiv:2507.18071, eq. 5)."
        )


def check_terms(config: GRPOConfig) -> None:
    """Raise where a temperature, a weight or a share that a term of the loss uses is out of range."""
    for name in ("sapo_temperature_pos", "sapo_temperature_neg"):
        if getattr(config, name) <= 0:
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be positive.")
    low, high = config.covariance_low, config.covariance_high
    if low >= high:
        raise ConfigError(
            f"covariance_low is {low} and covariance_high {high}; the first must be below the second."
        )
    within("ref_model_mixup_alpha", config.ref_model_mixup_alpha, 0.0, 1.0)
    for name in ("beta", "entropy_coef_min", "entropy_coef_delta", "dppo_kl_coef", "kl_cov_coef"):
        not_negative(name, getattr(config, name), "the weight of a term")
    for name in ("top_entropy_quantile", "covariance_share"):
        within(name, getattr(config, name), 0.0, 1.0)
        if not getattr(config, name):
            raise ConfigError(f"{name} is 0; it is a share of the tokens, and none would be left.")
    if config.use_adaptive_entropy:
        within("entropy_coef", config.entropy_coef, config.entropy_coef_min, config.entropy_coef_max)


def check_sampler_correction(config: GRPOConfig) -> None:
    """Raise where the weights of the correction could not be 1."""
    cap, floor = config.importance_sampling_cap, config.importance_sampling_floor
    if (cap is not None and cap < 1) or (floor is not None and not 0 <= floor <= 1):
        raise ConfigError(
            f"importance_sampling_cap is {cap} and importance_sampling_floor {floor}; a sampler that agrees with the "
            "trainer has weight 1, which must lie between the two."
        )
    if config.importance_sampling_correction and lacks_policy_logprobs(config):
        warn(
            f"importance_sampling_correction is off: engine={config.engine!r} draws from a changed distribution (top_p, top_k, min_p, a "
            "penalty, or options of its own), and does not say what the policy's own would have given. The weights would correct "
            "what was asked for. For a correction leave these settings at their defaults, or sample with engine='native'."
        )
    if not config.importance_sampling_m2 > 0:
        raise ConfigError(
            f"importance_sampling_m2 is {config.importance_sampling_m2}; the largest mean of squared gaps to the sampler must be above 0. The paper's is 0.04."
        )
    if config.off_policy_mask_threshold is not None:
        not_negative("off_policy_mask_threshold", config.off_policy_mask_threshold, "a drift in nats")


def check_no_effect(config: GRPOConfig) -> None:
    """Raise where a setting was changed that does nothing, in GRPO or beside the others."""
    for name, reason in WITHOUT_EFFECT.items():
        default = next((f.default for f in fields(TrainingArguments) if f.name == name), None)
        if getattr(config, name, default) not in (default, None):
            raise ConfigError(f"{name}={getattr(config, name)!r} has no effect in GRPO: {reason}. Unset it.")
    expected = defaults(type(config))
    if config.loss_type == "luspo" and config.importance_sampling_level == "sequence":
        expected["importance_sampling_level"] = "sequence"  # always so in LUSPO, and TRL's scripts say it
    message = without_effect(config, expected)
    if message is not None:
        raise ConfigError(message)
