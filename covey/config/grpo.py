"""GRPOConfig: the table of a run's settings, with TRL's names and defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from transformers import TrainingArguments

from covey.config import (
    consistency,
    elsewhere,
    engine_settings,
    packages,
    resolving,
    sampling_names,
    validation,
)
from covey.config.allocation_settings import AllocationSettings
from covey.config.async_settings import AsyncSettings
from covey.config.choices import Display
from covey.config.curriculum_settings import CurriculumSettings
from covey.config.engine_settings import EngineSettings
from covey.config.replay_settings import ReplaySettings
from covey.config.retired import RetiredSettings, read_retired
from covey.config.task_settings import TaskSettings
from covey.config.tool_settings import ToolSettings
from covey.config.validation import checks_names, help_text, parses
from covey.config.vision_settings import VisionSettings
from covey.errors import ConfigError
from covey.text.secrets import LEFT_OUT, blanked, is_secret_name
from covey.types import (
    AdvantageEstimator,
    Aggregation,
    CispoBound,
    CorrectionMode,
    KlEstimator,
    LossType,
    Overlong,
    RatioLevel,
    Scale,
    TruncatedCount,
)


@checks_names
@parses
@dataclass
class GRPOConfig(
    RetiredSettings,
    EngineSettings,
    AsyncSettings,
    AllocationSettings,
    CurriculumSettings,
    TaskSettings,
    ReplaySettings,
    ToolSettings,
    VisionSettings,
    TrainingArguments,
):
    """Settings of a GRPO run: everything in `transformers.TrainingArguments`, and what follows.

    Names that transformers and TRL retired are taken with advice (`covey.config.retired`), those that nothing needs here with
    a warning (`covey.config.elsewhere`). Those of engines are in `covey.config.engine_settings`, of sampling ahead in
    `covey.config.async_settings`, of groups that grow in `covey.config.allocation_settings`, of the choice of prompts in
    `covey.config.curriculum_settings`, of budgets per task in `covey.config.task_settings`, of replay in `covey.config.replay_settings`, of tools and environments in
    `covey.config.tool_settings`, of pictures in `covey.config.vision_settings`.

    Completions are the unit: `per_device_train_batch_size` counts completions per forward pass. `covey.plan.Plan` says
    what a set of numbers means.

    Raises:
        ConfigError: a wrong or misspelt setting, or two that contradict one another.
    """

    # --- defaults of TrainingArguments that GRPO changes
    learning_rate: float = help_text(1e-6, "Initial learning rate of the optimizer.")
    logging_steps: float = help_text(10, "Log every so many optimizer steps.")
    bf16: bool | None = help_text(  # type: ignore[assignment]
        None,
        "Compute in bfloat16, weights and optimizer in float32. Default: where a GPU does it in hardware.",
    )
    gradient_checkpointing: bool | None = help_text(
        True, "Recompute activations in the backward pass instead of keeping them."
    )
    remove_unused_columns: bool | None = help_text(  # type: ignore[assignment]
        False, "No effect: all columns reach the rewards."
    )
    resume_from_checkpoint: str | None = help_text(
        None,
        "What train() goes on from where it is not told: 'true' (the last whole checkpoint), 'auto' (the same, or start), "
        "or a folder.",
    )
    restore_callback_states_from_checkpoint: bool = help_text(
        True, "A resumed run goes on with the patience of early stopping and the like."
    )

    max_grad_norm: float | None = help_text(  # type: ignore[assignment]
        1.0, "Longest gradient; a longer one is shortened to it. 0 or None: no limit."
    )
    # HfArgumentParser reads a union of text and a switch as a switch, which 'all' is not
    include_num_input_tokens_seen: str | None = help_text(  # type: ignore[assignment]
        "no", "No effect: num_tokens is logged at each step."
    )
    liger_kernel_config: dict[str, bool] | str | None = help_text(  # type: ignore[assignment]
        None, "No effect: Liger's kernels are not used."
    )

    # --- model
    model_init_kwargs: dict[str, Any] | str | None = help_text(
        None, "Arguments for from_pretrained, when the model is given by name. `dtype` defaults to float32."
    )
    trust_remote_code: bool = help_text(
        False, "Run code that comes with the model, its tokenizer and reward models given by name."
    )
    router_aux_loss_coef: float | None = help_text(
        None,
        "Weight of the loss that balances the experts of a mixture; 0: none. None: the one in the model's config.",
    )
    cast_lm_head_to_fp32: bool = help_text(
        False, "No effect: soft-max and sums over the vocabulary are float32 anyway."
    )
    ds3_gather_for_generation: bool = help_text(
        True, "No effect: the native engine gathers what it samples with."
    )
    disable_dropout: bool = help_text(
        True, "No dropout anywhere, so that the ratio is 1 and the KL is 0 before the first update."
    )
    strict_hardware: bool = help_text(
        False, "Raise where the hardware lacks what is asked for, instead of falling back."
    )

    # --- sample
    num_generations: int = help_text(
        8, "Completions per prompt; with group_allocation='grow' on average. At least 2."
    )
    num_generations_eval: int | None = help_text(
        None, "Completions per prompt in evaluation. Default: num_generations."
    )
    max_prompt_length: int | None = help_text(
        None, "Tokens a prompt may have. Default: what the context holds."
    )
    overlong_prompts: Overlong = help_text(
        "truncate",
        "Prompts above max_prompt_length: cut the user's words from the left, 'drop' the row, or 'error'.",
    )
    max_completion_length: int = help_text(512, "Tokens a completion may have.")
    shuffle_dataset: bool = help_text(
        True, "Another order of the prompts in each epoch. A stream keeps its order."
    )
    pad_to_multiple_of: int | str | None = help_text("auto", "No effect: nothing is padded.")
    generation_batch_size: int | None = help_text(None, "Completions sampled at once, over all processes.")
    steps_per_generation: int | None = help_text(
        None, "Micro-batches sampled at once, per process. Default: gradient_accumulation_steps."
    )
    temperature: float = help_text(1.0, "Sampling temperature; the loss uses the same.")
    top_p: float = help_text(1.0, "Sample from the most probable tokens that hold this probability; 1: all.")
    top_k: int = help_text(0, "Sample from this many most probable tokens; 0: all.")
    min_p: float | None = help_text(None, "Sample from tokens this probable relative to the most probable.")
    repetition_penalty: float = help_text(1.0, "Above 1: tokens seen before become less probable.")
    generation_kwargs: dict[str, Any] | str | None = help_text(
        None, "More sampling options: min_new_tokens, suppress_tokens, stop_strings, bad_words_ids, ..."
    )
    chat_template_kwargs: dict[str, Any] | str | None = help_text(
        None, "More arguments for the chat template; a column of this name adds to them row by row."
    )
    keep_special_tokens: bool = help_text(
        False, "Rewards see special tokens other than end and padding in the text."
    )
    eval_generation_kwargs: dict[str, Any] | str | None = help_text(
        None,
        "Sampling options of evaluation that differ from training: temperature, top_p, top_k, min_p, do_sample=False, ...",
    )

    # --- score
    reward_weights: list[float] | None = help_text(None, "One weight per reward. Default: 1 each.")
    advantage_estimator: AdvantageEstimator = help_text(
        "grpo", f"What a completion is measured against: {', '.join(get_args(AdvantageEstimator))}."
    )
    multi_objective_aggregation: Aggregation = help_text(
        "sum_then_normalize", "Sum the rewards, then normalise; or 'normalize_then_sum' (GDPO)."
    )
    scale_rewards: Literal[Scale, True, False] = help_text(
        "group", "Divide advantages by the deviation of the 'group', of the 'batch', or by nothing ('none')."
    )
    truncated_reward: float | None = help_text(
        None,
        "Reward of completions that hit the length limit, in place of what they earned. Default: what they earned.",
    )
    truncated_in_baseline: bool = help_text(
        True,
        "Completions that hit the length limit count in mean and spread of their group; else they get advantage 0.",
    )

    dynamic_sampling: bool = help_text(
        False, "Replace groups whose rewards all agree by fresh prompts, before the update."
    )
    dynamic_sampling_rounds: int = help_text(3, "Sample so many times more at most.")
    dynamic_sampling_rewards: list[str] | None = help_text(
        None,
        "Names of the task rewards, which decide whether a group teaches something. Default: all rewards.",
    )

    # --- update
    loss_type: LossType = help_text(
        "dapo", f"The loss, and how it is summed up: {', '.join(get_args(LossType))}."
    )
    epsilon: float = help_text(
        0.2, "Ratios below 1 - epsilon are clipped; above 1 + epsilon too, unless epsilon_high is set."
    )
    epsilon_high: float | None = help_text(
        None, "Ratios above 1 + epsilon_high are clipped; inf: none are. Default: epsilon."
    )
    delta: float | None = help_text(
        None, "Ratios of tokens with negative advantage are capped here (two-sided clipping)."
    )
    importance_sampling_level: RatioLevel = help_text(
        "token", "Ratio of the 'token', of the 'sequence' (GSPO), or 'sequence_token' (GSPO-token)."
    )
    cispo_bound: CispoBound = help_text(
        "absolute",
        "With cispo, weights are capped at epsilon_high ('absolute') or 1 + epsilon_high ('relative').",
    )
    sapo_temperature_pos: float = help_text(1.0, "Temperature of SAPO's gate for positive advantages.")
    sapo_temperature_neg: float = help_text(1.05, "Temperature of SAPO's gate for all others.")
    vespo_k_pos: float = help_text(2.0, "k of VESPO's weight for positive advantages.")
    vespo_lambda_pos: float = help_text(3.0, "λ of VESPO's weight for positive advantages.")
    vespo_k_neg: float = help_text(3.0, "k of VESPO's weight for negative advantages.")
    vespo_lambda_neg: float = help_text(2.0, "λ of VESPO's weight for negative advantages.")
    dppo_kl_coef: float = help_text(
        1e-3, "Weight of the squared difference between current and sampler log-probability in DPPO."
    )
    covariance_share: float = help_text(2e-4, "Share of the tokens that clip_cov and kl_cov act on.")
    covariance_low: float = help_text(1.0, "clip_cov acts on covariances of at least this.")
    covariance_high: float = help_text(5.0, "clip_cov acts on covariances of at most this; inf: no limit.")
    kl_cov_coef: float = help_text(1.0, "Weight of kl_cov's penalty.")
    beta: float = help_text(0.0, "Weight of the KL divergence to the reference; 0: no reference is kept.")
    kl_in_reward: bool = help_text(
        False, "Take the divergence off the reward instead of adding it to the loss."
    )
    kl_estimator: KlEstimator | None = help_text(
        None,
        "'k1', 'k2' or 'k3'. Default: k3 in the loss, k1 in the reward; there their gradients are unbiased.",
    )
    use_bias_correction_kl: bool = help_text(
        True, "Weigh the KL estimate by the ratio, so that its gradient is unbiased."
    )
    entropy_coef: float = help_text(
        0.0, "Weight of the entropy bonus; with use_adaptive_entropy, where it starts."
    )
    use_adaptive_entropy: bool = help_text(
        False, "Move the weight of the entropy bonus towards entropy_target."
    )
    entropy_target: float = help_text(
        0.2, "Entropy, in nats per token, at or below which the bonus is given."
    )
    entropy_coef_delta: float = help_text(0.005, "How far the weight moves in a step.")
    entropy_coef_min: float = help_text(0.0, "Least weight.")
    entropy_coef_max: float = help_text(1.0, "Largest weight.")
    top_entropy_quantile: float = help_text(
        1.0, "Only this share of the tokens, those of highest entropy, has a policy loss; 1: all."
    )
    importance_sampling_correction: bool = help_text(
        True, "Weigh tokens for what the sampler computed differently. Exactly 1 where it did not."
    )
    importance_sampling_mode: CorrectionMode = help_text(
        "token_truncate", f"How: {', '.join(get_args(CorrectionMode))}."
    )
    importance_sampling_cap: float | None = help_text(2.0, "Largest weight; None: no limit.")
    importance_sampling_floor: float | None = help_text(None, "Least weight; None: no limit.")
    importance_sampling_m2: float = help_text(
        0.04,
        "With token_m2, tokens are dropped until the mean squared gap to the sampler is at most this, in nats squared.",
    )
    vllm_importance_sampling_correction: bool | None = help_text(
        None, "The same as importance_sampling_correction."
    )
    vllm_importance_sampling_mode: CorrectionMode | None = help_text(
        None, "The same as importance_sampling_mode."
    )
    vllm_importance_sampling_cap: float | None = help_text(None, "The same as importance_sampling_cap.")
    vllm_importance_sampling_clip_max: float | None = help_text(None, "The same as importance_sampling_cap.")
    vllm_importance_sampling_clip_min: float | None = help_text(
        None, "The same as importance_sampling_floor."
    )
    off_policy_mask_threshold: float | None = help_text(
        None,
        "Completions with negative advantage that drifted further than this, in nats per token, are left out.",
    )
    num_iterations: int = help_text(1, "Passes over each sampled batch.")
    mask_truncated_completions: bool = help_text(
        False, "Completions that hit the length limit do not enter the loss."
    )
    truncated_in_denominator: TruncatedCount = help_text(
        "sequences",
        "Masked completions count in the denominators as 'sequences', as 'tokens_and_sequences', or not ('none').",
    )
    sync_ref_model: bool = help_text(False, "Move the reference towards the policy from time to time.")
    ref_model_mixup_alpha: float = help_text(0.6, "Share of the policy in the new reference.")
    ref_model_sync_steps: int = help_text(512, "Optimizer steps between two moves of the reference.")
    max_tokens_per_forward: int | None = help_text(
        None,
        "Cut micro-batches so that a forward pass reads at most so many tokens, a group's prompt counted once; "
        "None: only where memory runs out.",
    )
    activation_offloading: bool = help_text(
        False, "Keep activations in the host's memory until the backward pass. Needs a GPU."
    )
    max_nonfinite_steps: int = help_text(
        3, "Stop after so many steps in a row whose loss or gradient is not finite."
    )

    # --- record
    record: bool = help_text(
        True, "Leave a record of the run in output_dir/record: settings, steps, groups, events."
    )
    # HfArgumentParser reads a union with None as text, and one without as a number, which 'all' is not
    record_completions: float | str | None = help_text(
        "all", "Whose texts are recorded: 'all', 'none', or a share of the groups between 0 and 1."
    )
    task_column: str = help_text("task", "Column that names the task of a row; metrics are kept for each.")
    display: Display = help_text(
        "auto", "'live' draws in the terminal, 'plain' prints lines; 'auto': live on a terminal."
    )
    log_completions: bool = help_text(
        False,
        "Write every completion to completions.jsonl in output_dir, and a table of the last ones to the loggers of "
        "report_to at each log.",
    )
    num_completions_to_print: int | None = help_text(
        None, "Print so many of the last completions at each log. Default: none."
    )
    log_unique_prompts: bool = help_text(
        False, "One completion per prompt in the tables of log_completions and in what is printed."
    )
    log_completions_hub_repo: str | None = help_text(
        None, "Not there yet: uploading of tables. An error where it is set."
    )

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: for a file beside the weights, which may be pushed, without secrets."""
        state = dict(vars(self))
        if not LEFT_OUT.get():
            return state
        return {
            n: blanked(v) if isinstance(v, str | dict) else v
            for n, v in state.items()
            if not is_secret_name(n)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as values of JSON, as loggers and the record get them: secrets are blanked at any depth."""
        # Loggers write them as JSON; of an object that JSON does not know, such as Tags, its text.
        return cast(dict[str, Any], json.loads(json.dumps(blanked(super().to_dict()), default=str)))

    def __post_init__(self) -> None:
        read_retired(self)
        engine_settings.read_engine(self)
        validation.check_values(self, GRPOConfig)
        resolving.read_text(self)
        elsewhere.take_without_effect(self)
        resolving.resolve_checkpointing(self)
        resolving.resolve_hardware(self)
        engine_settings.resolve_engines(self)
        packages.resolve_optimizer(self)
        packages.check_loggers(self)
        consistency.check_training(self)
        resolving.resolve_best_metric(self)
        try:
            super().__post_init__()
        except (ImportError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"transformers refuses these settings: {error}") from error
        resolving.resolve_watching_schedule(self)
        resolving.read_aliases(self)
        sampling_names.read_sampling_names(self)
        consistency.check_all(self)


OWN = tuple(
    name
    for table in (GRPOConfig, *GRPOConfig.__bases__)
    if table not in (RetiredSettings, TrainingArguments)
    for name in table.__annotations__
)
"""Covey's own settings, without the names that are retired."""
