"""GRPOConfig and ModelConfig: TRL's names and defaults, validated once.

A misspelt name raises and suggests. A setting that would have no effect raises or warns; none is rewritten silently.
The steps receive plain arguments; they have never heard of these classes.
"""

from __future__ import annotations

import difflib
import functools
import json
import warnings
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from transformers import TrainingArguments

from covey.effects import without_effect
from covey.errors import ConfigError, CoveyWarning
from covey.hardware import computes_bf16, has_accelerator, has_cuda, has_package, use_instead
from covey.loss_types import LOSS_TYPES

C = TypeVar("C", bound=type)

SCALES = ("group", "batch", "none")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
ESTIMATORS = ("grpo", "rloo", "leave_one_out", "reinforce_pp", "maxrl", "opo", "pass_at_k")
LEVELS = ("token", "sequence", "sequence_token")
CORRECTION_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
TRUNCATED_COUNTS = ("sequences", "tokens_and_sequences", "none")

ALIASES = {
    "vllm_importance_sampling_correction": "importance_sampling_correction",
    "vllm_importance_sampling_mode": "importance_sampling_mode",
    "vllm_importance_sampling_cap": "importance_sampling_cap",
    "vllm_importance_sampling_clip_max": "importance_sampling_cap",
    "vllm_importance_sampling_clip_min": "importance_sampling_floor",
}
"""TRL's names of settings that have another name here."""


class UnknownSettingError(ConfigError, TypeError):
    """A setting that does not exist."""


def _checks_names(cls: C) -> C:
    """Make the constructor name what it does not know, and the settings that come close."""
    generated: Any = cls.__init__  # type: ignore[misc]

    @functools.wraps(generated)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        known = [f.name for f in fields(cls)]
        for name in kwargs:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3)
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                raise UnknownSettingError(f"{cls.__name__} has no setting {name!r}.{hint}")
        generated(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[misc]
    return cls


def _help(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@_checks_names
@dataclass
class GRPOConfig(TrainingArguments):
    """Settings of a GRPO run: everything in `transformers.TrainingArguments`, and what follows.

    Completions are the unit: `per_device_train_batch_size` counts completions per forward pass. `covey.plan.Plan` says
    what a set of numbers means.

    Raises:
        ConfigError: a wrong or misspelt setting, or two that contradict one another.
    """

    # --- defaults of TrainingArguments that GRPO changes
    learning_rate: float = _help(1e-6, "Initial learning rate of the optimizer.")
    logging_steps: float = _help(10, "Log every so many optimizer steps.")
    bf16: bool | None = _help(  # type: ignore[assignment]
        None,
        "Compute in bfloat16, weights and optimizer in float32. Default: where a GPU does it in hardware.",
    )
    gradient_checkpointing: bool | None = _help(
        None, "Recompute activations in the backward pass instead of keeping them. Default: on."
    )
    remove_unused_columns: bool | None = _help(  # type: ignore[assignment]
        False, "No effect: all columns reach the rewards."
    )
    resume_from_checkpoint: str | None = _help(
        None,
        "What train() goes on from where it is not told: 'true' (the last whole checkpoint), 'auto' (the same, or start), "
        "or a folder.",
    )
    restore_callback_states_from_checkpoint: bool = _help(
        True, "A resumed run goes on with the patience of early stopping and the like."
    )

    # --- model
    model_init_kwargs: dict[str, Any] | str | None = _help(
        None, "Arguments for from_pretrained, when the model is given by name. `dtype` defaults to float32."
    )
    trust_remote_code: bool = _help(False, "Run code that comes with the model.")
    disable_dropout: bool = _help(
        True, "No dropout anywhere, so that the ratio is 1 and the KL is 0 before the first update."
    )
    strict_hardware: bool = _help(
        False, "Raise where the hardware lacks what is asked for, instead of falling back."
    )

    # --- sample
    num_generations: int = _help(8, "Completions per prompt. At least 2.")
    num_generations_eval: int | None = _help(
        None, "Completions per prompt in evaluation. Default: num_generations."
    )
    max_prompt_length: int | None = _help(None, "Tokens a prompt may have. Default: what the context holds.")
    overlong_prompts: str = _help(
        "truncate",
        "Prompts above max_prompt_length: cut the user's words from the left, 'drop' the row, or 'error'.",
    )
    max_completion_length: int = _help(512, "Tokens a completion may have.")
    shuffle_dataset: bool = _help(
        True, "Another order of the prompts in each epoch. A stream keeps its order."
    )
    generation_batch_size: int | None = _help(None, "Completions sampled at once, over all processes.")
    steps_per_generation: int | None = _help(
        None, "Micro-batches sampled at once, per process. Default: gradient_accumulation_steps."
    )
    temperature: float = _help(1.0, "Sampling temperature; the loss uses the same.")
    top_p: float = _help(1.0, "Sample from the most probable tokens that hold this probability; 1: all.")
    top_k: int = _help(0, "Sample from this many most probable tokens; 0: all.")
    min_p: float | None = _help(None, "Sample from tokens this probable relative to the most probable.")
    repetition_penalty: float = _help(1.0, "Above 1: tokens seen before become less probable.")
    generation_kwargs: dict[str, Any] | str | None = _help(
        None, "More sampling options: min_new_tokens, suppress_tokens, stop_strings, bad_words_ids, ..."
    )
    chat_template_kwargs: dict[str, Any] | str | None = _help(
        None, "More arguments for the chat template; a column of this name adds to them row by row."
    )
    keep_special_tokens: bool = _help(
        False, "Rewards see special tokens other than end and padding in the text."
    )
    eval_generation_kwargs: dict[str, Any] | str | None = _help(
        None,
        "Sampling options of evaluation that differ from training: temperature, top_p, top_k, min_p, do_sample=False, ...",
    )
    use_vllm: bool = _help(False, "Not available yet: the native engine samples instead, with a warning.")

    # --- score
    reward_weights: list[float] | None = _help(None, "One weight per reward. Default: 1 each.")
    advantage_estimator: str = _help(
        "grpo", f"What a completion is measured against: {', '.join(ESTIMATORS)}."
    )
    multi_objective_aggregation: str = _help(
        "sum_then_normalize", "Sum the rewards, then normalise; or 'normalize_then_sum' (GDPO)."
    )
    scale_rewards: str | bool = _help(
        "group", "Divide advantages by the deviation of the 'group', of the 'batch', or by nothing ('none')."
    )
    truncated_reward: float | None = _help(
        None,
        "Reward of completions that hit the length limit, in place of what they earned. Default: what they earned.",
    )
    truncated_in_baseline: bool = _help(
        True,
        "Completions that hit the length limit count in mean and spread of their group; else they get advantage 0.",
    )

    dynamic_sampling: bool = _help(
        False, "Replace groups whose rewards all agree by fresh prompts, before the update."
    )
    dynamic_sampling_rounds: int = _help(3, "Sample so many times more at most.")
    dynamic_sampling_rewards: list[str] | None = _help(
        None,
        "Names of the task rewards, which decide whether a group teaches something. Default: all rewards.",
    )

    # --- update
    loss_type: str = _help("dapo", f"The loss, and how it is summed up: {', '.join(LOSS_TYPES)}.")
    epsilon: float = _help(
        0.2, "Ratios below 1 - epsilon are clipped; above 1 + epsilon too, unless epsilon_high is set."
    )
    epsilon_high: float | None = _help(None, "Ratios above 1 + epsilon_high are clipped. Default: epsilon.")
    delta: float | None = _help(
        None, "Ratios of tokens with negative advantage are capped here (two-sided clipping)."
    )
    importance_sampling_level: str = _help(
        "token", "Ratio of the 'token', of the 'sequence' (GSPO), or 'sequence_token' (GSPO-token)."
    )
    cispo_bound: str = _help(
        "absolute",
        "With cispo, weights are capped at epsilon_high ('absolute') or 1 + epsilon_high ('relative').",
    )
    sapo_temperature_pos: float = _help(1.0, "Temperature of SAPO's gate for positive advantages.")
    sapo_temperature_neg: float = _help(1.05, "Temperature of SAPO's gate for all others.")
    vespo_k_pos: float = _help(2.0, "k of VESPO's weight for positive advantages.")
    vespo_lambda_pos: float = _help(3.0, "λ of VESPO's weight for positive advantages.")
    vespo_k_neg: float = _help(3.0, "k of VESPO's weight for negative advantages.")
    vespo_lambda_neg: float = _help(2.0, "λ of VESPO's weight for negative advantages.")
    dppo_kl_coef: float = _help(1e-3, "Weight of (l - b)² in DPPO.")
    covariance_share: float = _help(2e-4, "Share of the tokens that clip_cov and kl_cov act on.")
    covariance_low: float = _help(1.0, "clip_cov acts on covariances of at least this.")
    covariance_high: float = _help(5.0, "clip_cov acts on covariances of at most this.")
    kl_cov_coef: float = _help(1.0, "Weight of kl_cov's penalty.")
    beta: float = _help(0.0, "Weight of the KL divergence to the reference; 0: no reference is kept.")
    kl_in_reward: bool = _help(False, "Take the divergence off the reward instead of adding it to the loss.")
    kl_estimator: str | None = _help(
        None,
        "'k1', 'k2' or 'k3'. Default: k3 in the loss, k1 in the reward; there their gradients are unbiased.",
    )
    use_bias_correction_kl: bool = _help(
        True, "Weigh the KL estimate by the ratio, so that its gradient is unbiased."
    )
    entropy_coef: float = _help(
        0.0, "Weight of the entropy bonus; with use_adaptive_entropy, where it starts."
    )
    use_adaptive_entropy: bool = _help(False, "Move the weight of the entropy bonus towards entropy_target.")
    entropy_target: float = _help(0.2, "Entropy, in nats per token, at or below which the bonus is given.")
    entropy_coef_delta: float = _help(0.005, "How far the weight moves in a step.")
    entropy_coef_min: float = _help(0.0, "Least weight.")
    entropy_coef_max: float = _help(1.0, "Largest weight.")
    top_entropy_quantile: float = _help(
        1.0, "Only this share of the tokens, those of highest entropy, has a policy loss; 1: all."
    )
    importance_sampling_correction: bool = _help(
        True, "Weigh tokens for what the sampler computed differently. Exactly 1 where it did not."
    )
    importance_sampling_mode: str = _help("token_truncate", f"How: {', '.join(CORRECTION_MODES)}.")
    importance_sampling_cap: float | None = _help(2.0, "Largest weight; None: no limit.")
    importance_sampling_floor: float | None = _help(None, "Least weight; None: no limit.")
    vllm_importance_sampling_correction: bool | None = _help(
        None, "The same as importance_sampling_correction."
    )
    vllm_importance_sampling_mode: str | None = _help(None, "The same as importance_sampling_mode.")
    vllm_importance_sampling_cap: float | None = _help(None, "The same as importance_sampling_cap.")
    vllm_importance_sampling_clip_max: float | None = _help(None, "The same as importance_sampling_cap.")
    vllm_importance_sampling_clip_min: float | None = _help(None, "The same as importance_sampling_floor.")
    off_policy_mask_threshold: float | None = _help(
        None,
        "Completions with negative advantage that drifted further than this, in nats per token, are left out.",
    )
    num_iterations: int = _help(1, "Passes over each sampled batch.")
    mask_truncated_completions: bool = _help(
        False, "Completions that hit the length limit do not enter the loss."
    )
    truncated_in_denominator: str = _help(
        "sequences",
        "Masked completions count in the denominators as 'sequences', as 'tokens_and_sequences', or not ('none').",
    )
    sync_ref_model: bool = _help(False, "Move the reference towards the policy from time to time.")
    ref_model_mixup_alpha: float = _help(0.6, "Share of the policy in the new reference.")
    ref_model_sync_steps: int = _help(512, "Optimizer steps between two moves of the reference.")
    max_tokens_per_forward: int | None = _help(
        None,
        "Cut micro-batches so that a forward pass reads at most so many tokens, a group's prompt counted once; "
        "None: only where memory runs out.",
    )
    activation_offloading: bool = _help(
        False, "Keep activations in the host's memory until the backward pass. Needs a GPU."
    )
    max_nonfinite_steps: int = _help(
        3, "Stop after so many steps in a row whose loss or gradient is not finite."
    )

    # --- record
    record: bool = _help(
        True, "Leave a record of the run in output_dir/record: settings, steps, groups, events."
    )
    record_completions: str | float = _help(
        "all", "Whose texts are recorded: 'all', 'none', or a share of the groups between 0 and 1."
    )
    task_column: str = _help("task", "Column that names the task of a row; metrics are kept for each.")
    display: str = _help(
        "auto", "'live' draws in the terminal, 'plain' prints lines; 'auto': live on a terminal."
    )
    log_completions: bool = _help(
        False,
        "Write every completion to completions.jsonl in output_dir, and a table of the last ones to the loggers of "
        "report_to at each log.",
    )
    num_completions_to_print: int | None = _help(
        None, "Print so many of the last completions at each log. Default: none."
    )

    def __post_init__(self) -> None:
        self._read_dicts()
        self._resolve_checkpointing()
        self._resolve_hardware()
        if self.load_best_model_at_end and self.metric_for_best_model is None:
            self.metric_for_best_model = "reward"
        super().__post_init__()
        self._read_aliases()
        self._check_sample()
        self._check_score()
        self._check_update()
        self._check_weights_of_terms()
        self._check_sampler_correction()
        self._check_no_effect()

    def _read_dicts(self) -> None:
        """Dictionaries may come as JSON, from a command line."""
        for name in (
            "model_init_kwargs",
            "generation_kwargs",
            "eval_generation_kwargs",
            "chat_template_kwargs",
        ):
            value = getattr(self, name)
            if isinstance(value, str):
                try:
                    setattr(self, name, json.loads(value))
                except json.JSONDecodeError as error:
                    raise ConfigError(
                        f"{name} is not a JSON object: {error}. It came as {value[:80]!r}."
                    ) from error

    def _read_aliases(self) -> None:
        defaults = _defaults(type(self))
        for alias, name in ALIASES.items():
            value = getattr(self, alias)
            if value is None:
                continue
            if getattr(self, name) not in (defaults[name], value):
                raise ConfigError(
                    f"{alias}={value!r} and {name}={getattr(self, name)!r} are the same setting. Give one of them."
                )
            setattr(self, name, value)

    def _resolve_checkpointing(self) -> None:
        """transformers 5.24 calls it activation checkpointing; both names work here, and nothing warns."""
        if not hasattr(self, "activation_checkpointing"):
            self.gradient_checkpointing = self.gradient_checkpointing is not False
            return
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing is not False
        if self.activation_checkpointing_kwargs is None:
            self.activation_checkpointing_kwargs = self.gradient_checkpointing_kwargs
        self.gradient_checkpointing = self.gradient_checkpointing_kwargs = None

    def _resolve_hardware(self) -> None:
        if not has_accelerator():
            self.use_cpu = True
        if self.activation_offloading and self.use_cpu:
            use_instead(
                "activation_offloading=True",
                "activations are in the host's memory already",
                "activation_offloading=False",
                self.strict_hardware,
            )
            self.activation_offloading = False
        if self.bf16 is None:
            self.bf16 = not self.fp16 and not self.use_cpu and computes_bf16(on_cpu=False)
        elif self.bf16 and not computes_bf16(self.use_cpu):
            use_instead(
                "bf16=True", "this machine has no bfloat16 arithmetic", "float32", self.strict_hardware
            )
            self.bf16 = False
        if self.fp16 and self.use_cpu:
            use_instead("fp16=True", "float16 training needs a GPU", "float32", self.strict_hardware)
            self.fp16 = False
        if self.use_vllm:
            use_instead(
                "use_vllm=True", "Covey does not drive vLLM yet", "the native engine", self.strict_hardware
            )

    def _check_sample(self) -> None:
        _at_least("num_generations", self.num_generations, 2, "a completion is judged against its siblings")
        if self.num_generations_eval is not None:
            _at_least("num_generations_eval", self.num_generations_eval, 1)
        if self.max_prompt_length is not None:
            _at_least("max_prompt_length", self.max_prompt_length, 1)
        _at_least("max_completion_length", self.max_completion_length, 1)
        if self.num_completions_to_print is not None:
            _at_least("num_completions_to_print", self.num_completions_to_print, 0)
        _one_of("display", self.display, ("auto", "live", "plain"))
        _one_of("overlong_prompts", self.overlong_prompts, ("truncate", "drop", "error"))
        if not 0.01 <= self.temperature < float("inf"):
            raise ConfigError(
                f"temperature is {self.temperature}; it must be at least 0.01. Towards 0 sampling becomes greedy, all "
                "completions of a prompt are the same, and there is nothing to learn from."
            )
        _within("top_p", self.top_p, 0.0, 1.0)
        _within("min_p", self.min_p or 0.0, 0.0, 1.0)
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; give the number of tokens to sample from, 0 for all.")
        if self.repetition_penalty <= 0:
            raise ConfigError(
                f"repetition_penalty is {self.repetition_penalty}; it must be positive, 1 for none."
            )
        if self.top_p < 1.0 or self.top_k or self.min_p or self.repetition_penalty != 1.0:
            warnings.warn(
                "Completions are drawn from another distribution than the one the loss is computed for (top_p, top_k, min_p "
                "or repetition_penalty): the ratio of the update is biased by as much. Leave them at their defaults unless "
                "you need them.",
                CoveyWarning,
                stacklevel=4,
            )

    def _check_score(self) -> None:
        _at_least("dynamic_sampling_rounds", self.dynamic_sampling_rounds, 1)
        if isinstance(self.scale_rewards, bool):
            self.scale_rewards = "group" if self.scale_rewards else "none"
        _one_of("scale_rewards", self.scale_rewards, SCALES)
        _one_of("multi_objective_aggregation", self.multi_objective_aggregation, AGGREGATIONS)
        _one_of("advantage_estimator", self.advantage_estimator, ESTIMATORS)
        _one_of("truncated_in_denominator", self.truncated_in_denominator, TRUNCATED_COUNTS)

    def _check_update(self) -> None:
        _one_of("loss_type", self.loss_type, tuple(LOSS_TYPES))
        _one_of("cispo_bound", self.cispo_bound, ("absolute", "relative"))
        _one_of("importance_sampling_level", self.importance_sampling_level, LEVELS)
        for name in ("epsilon", "epsilon_high"):
            _not_negative(name, getattr(self, name), "a distance from 1")
        if self.loss_type == "cispo" and self.epsilon_high is None:
            raise ConfigError(
                "loss_type='cispo' needs epsilon_high, the bound of the weights. With cispo_bound='absolute' (TRL's "
                "convention) they are capped at epsilon_high itself, for example 5; with 'relative' (the paper's) at "
                "1 + epsilon_high."
            )
        upper = 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)
        if self.delta is not None and self.delta <= upper:
            raise ConfigError(
                f"delta is {self.delta}; it caps ratios beyond the upper clip bound and must be above {upper:g}."
            )
        for name in ("sapo_temperature_pos", "sapo_temperature_neg"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive.")
        if self.covariance_low >= self.covariance_high:
            raise ConfigError(
                f"covariance_low is {self.covariance_low} and covariance_high {self.covariance_high}; the first must be "
                "below the second."
            )
        _at_least("num_iterations", self.num_iterations, 1)
        _at_least("max_nonfinite_steps", self.max_nonfinite_steps, 1)
        if self.max_tokens_per_forward is not None:
            _at_least("max_tokens_per_forward", self.max_tokens_per_forward, 1)
        _within("ref_model_mixup_alpha", self.ref_model_mixup_alpha, 0.0, 1.0)
        _at_least("ref_model_sync_steps", self.ref_model_sync_steps, 1)

    def _check_weights_of_terms(self) -> None:
        for name in ("beta", "entropy_coef_min", "entropy_coef_delta", "dppo_kl_coef", "kl_cov_coef"):
            _not_negative(name, getattr(self, name), "the weight of a term")
        _one_of("kl_estimator", self.kl_estimator or "k3", ("k1", "k2", "k3"))
        for name in ("top_entropy_quantile", "covariance_share"):
            _within(name, getattr(self, name), 0.0, 1.0)
            if not getattr(self, name):
                raise ConfigError(f"{name} is 0; it is a share of the tokens, and none would be left.")
        if self.use_adaptive_entropy:
            _within("entropy_coef", self.entropy_coef, self.entropy_coef_min, self.entropy_coef_max)

    def _check_sampler_correction(self) -> None:
        _one_of("importance_sampling_mode", self.importance_sampling_mode, CORRECTION_MODES)
        cap, floor = self.importance_sampling_cap, self.importance_sampling_floor
        if (cap is not None and cap < 1) or (floor is not None and not 0 <= floor <= 1):
            raise ConfigError(
                f"importance_sampling_cap is {cap} and importance_sampling_floor {floor}; a sampler that agrees with the "
                "trainer has weight 1, which must lie between the two."
            )
        if self.off_policy_mask_threshold is not None:
            _not_negative("off_policy_mask_threshold", self.off_policy_mask_threshold, "a drift in nats")

    def _check_no_effect(self) -> None:
        """Settings of TrainingArguments that GRPO does not use must not look as if they did something."""
        for name, reason in _WITHOUT_EFFECT.items():
            default = next((f.default for f in fields(TrainingArguments) if f.name == name), None)
            if getattr(self, name, default) not in (default, None):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} has no effect in GRPO: {reason}. Unset it."
                )
        message = without_effect(self, _defaults(type(self)) | self._says_what_it_does())
        if message is not None:
            raise ConfigError(message)

    def _says_what_it_does(self) -> dict[str, Any]:
        """LUSPO always takes the ratio of the sequence; TRL's scripts say so."""
        says_so = self.loss_type == "luspo" and self.importance_sampling_level == "sequence"
        return {"importance_sampling_level": "sequence"} if says_so else {}


_WITHOUT_EFFECT = {
    "label_smoothing_factor": "there are no labels",
    "prediction_loss_only": "evaluation computes no loss",
    "batch_eval_metrics": "evaluation computes no loss",
    "auto_find_batch_size": "the batch size is part of the plan",
    "train_sampling_strategy": "prompts are drawn by shuffle_dataset",
    "group_by_length": "prompts are drawn by shuffle_dataset",
    "dataloader_drop_last": "what does not fill a round of sampling is always left out",
    "neftune_noise_alpha": "noise on the embeddings would make ratios and KL meaningless",
}


def _defaults(cls: type) -> dict[str, Any]:
    return {f.name: f.default for f in fields(cls)}


def _not_negative(name: str, value: float | None, what: str) -> None:
    if value is not None and value < 0:
        raise ConfigError(f"{name} is {value}; it is {what} and must not be negative.")


def _at_least(name: str, value: Any, least: int, reason: str = "") -> None:
    if not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name} is {value!r}; it must be a whole number, at least {least}{': ' if reason else ''}{reason}."
        )


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}; it must lie between {low:g} and {high:g}.")


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        close = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.{hint}")


@_checks_names
@dataclass
class ModelConfig:
    """Which model is trained, in which precision, and with which adapter. TRL's names."""

    model_name_or_path: str | None = _help(None, "Name on the hub, or a folder.")
    model_revision: str = _help("main", "Branch, tag or commit.")
    revision: str | None = _help(None, "The same as model_revision.")
    dtype: str | None = _help(
        "float32", "Precision that the weights are loaded in: 'auto', 'bfloat16', 'float32', ..."
    )
    torch_dtype: str | None = _help(None, "The same as dtype.")
    trust_remote_code: bool = _help(False, "Run code that comes with the model.")
    attn_implementation: str | None = _help(None, "'sdpa', 'eager', 'flash_attention_2', ...")
    use_peft: bool = _help(False, "Train an adapter instead of all weights.")
    lora_r: int = _help(16, "Rank of the adapter.")
    lora_alpha: int = _help(32, "Scale of the adapter.")
    lora_dropout: float = _help(0.0, "Dropout of the adapter; has an effect only with disable_dropout=False.")
    lora_target_modules: list[str] | str | None = _help(None, "Modules to adapt: names, or 'all-linear'.")
    lora_target_parameters: list[str] | None = _help(
        None, "Parameters to adapt, for layers that are no modules."
    )
    lora_modules_to_save: list[str] | None = _help(
        None, "Modules that are trained in full beside the adapter."
    )
    lora_task_type: str = _help("CAUSAL_LM", "Task type of the adapter.")
    lora_init: bool | str = _help(
        True, "How the adapter starts: True, False, 'gaussian', 'pissa', 'olora', ..."
    )
    lora_kwargs: dict[str, Any] | None = _help(None, "More arguments for peft.LoraConfig.")
    use_rslora: bool = _help(False, "Rank-stabilised scale (arXiv:2312.03732).")
    use_dora: bool = _help(False, "Weight-decomposed adapter (arXiv:2402.09353).")
    load_in_8bit: bool = _help(False, "Frozen weights in 8 bits.")
    load_in_4bit: bool = _help(False, "Frozen weights in 4 bits.")
    bnb_4bit_quant_type: str = _help("nf4", "'nf4' or 'fp4'.")
    use_bnb_nested_quant: bool = _help(False, "Quantise the constants of the quantisation too.")
    bnb_4bit_quant_storage: str | None = _help(None, "Type that the 4-bit weights are stored in.")

    def __post_init__(self) -> None:
        if self.torch_dtype is not None:
            self.dtype = self.torch_dtype
        if self.revision is not None:
            self.model_revision = self.revision
        if self.load_in_4bit and self.load_in_8bit:
            raise ConfigError("load_in_4bit and load_in_8bit are both set. Choose one.")
        _one_of("bnb_4bit_quant_type", self.bnb_4bit_quant_type, ("nf4", "fp4"))
        if self.lora_target_modules == ["all-linear"]:
            self.lora_target_modules = "all-linear"

    def init_kwargs(self) -> dict[str, Any]:
        """Arguments for from_pretrained."""
        given = {
            "revision": self.model_revision,
            "dtype": self.dtype,
            "trust_remote_code": self.trust_remote_code,
            "attn_implementation": self.attn_implementation,
            "quantization_config": get_quantization_config(self),
        }
        return {name: value for name, value in given.items() if value is not None}


def get_peft_config(model_config: ModelConfig) -> Any:
    """The `peft.LoraConfig` that a ModelConfig describes; None without `use_peft`.

    Raises:
        ConfigError: `lora_kwargs` has a name that LoraConfig does not know.
    """
    if not model_config.use_peft:
        return None
    from peft import LoraConfig

    known = {f.name for f in fields(LoraConfig)}
    unknown = sorted(set(model_config.lora_kwargs or {}) - known)
    if unknown:
        raise ConfigError(
            f"lora_kwargs has {', '.join(map(repr, unknown))}, which peft.LoraConfig does not know."
        )
    arguments: dict[str, Any] = {
        "r": model_config.lora_r,
        "lora_alpha": model_config.lora_alpha,
        "lora_dropout": model_config.lora_dropout,
        "target_modules": model_config.lora_target_modules,
        "modules_to_save": model_config.lora_modules_to_save,
        "task_type": model_config.lora_task_type,
        "init_lora_weights": model_config.lora_init,
        "use_rslora": model_config.use_rslora,
        "use_dora": model_config.use_dora,
    }
    if model_config.lora_target_parameters is not None:
        arguments["target_parameters"] = model_config.lora_target_parameters
    return LoraConfig(**{**arguments, **(model_config.lora_kwargs or {})})


def get_quantization_config(model_config: ModelConfig, strict_hardware: bool = False) -> Any:
    """The `transformers.BitsAndBytesConfig` that a ModelConfig describes; None where nothing is quantised.

    Without CUDA or without bitsandbytes the weights stay in full precision, with a warning.
    """
    if not (model_config.load_in_4bit or model_config.load_in_8bit):
        return None
    asked = "load_in_4bit=True" if model_config.load_in_4bit else "load_in_8bit=True"
    if not (has_cuda() and has_package("bitsandbytes")):
        use_instead(asked, "it needs a CUDA device and bitsandbytes", "full precision", strict_hardware)
        return None
    from transformers import BitsAndBytesConfig

    if model_config.load_in_8bit:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_compute_dtype=model_config.dtype if model_config.dtype != "auto" else None,
        bnb_4bit_quant_type=model_config.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=model_config.use_bnb_nested_quant,
        bnb_4bit_quant_storage=model_config.bnb_4bit_quant_storage,
    )


def get_kbit_device_map() -> dict[str, int] | None:
    """Where a quantised model goes: this process's own GPU; None without CUDA."""
    if not has_cuda():
        return None
    from accelerate import PartialState

    return {"": PartialState().local_process_index}
