"""Table of the settings that have an effect only together with others, so that one without effect is refused.

A setting that stands at its default is never refused: nobody asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.config.choices import LOSS_SETTINGS, LOSS_TYPES

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig


@dataclass(frozen=True)
class Condition:
    """Settings, and when they act."""

    settings: tuple[str, ...]
    holds: Callable[[GRPOConfig], bool]
    """Whether they act, given all settings."""
    reason: str
    """Why they do not, otherwise; completes "... has no effect"."""


CONDITIONS = (
    Condition(
        ("epsilon",),
        lambda s: s.loss_type != "cispo" or s.cispo_bound == "relative" or s.epsilon_high is None,
        "with cispo_bound='absolute' beside epsilon_high, which has no lower bound",
    ),
    Condition(
        ("multi_objective_aggregation", "scale_rewards"),
        lambda s: s.advantage_estimator == "grpo",
        "with an advantage_estimator other than 'grpo', which sums the rewards and scales by its own rule",
    ),
    Condition(
        ("scale_rewards",),
        lambda s: s.multi_objective_aggregation == "sum_then_normalize",
        "with normalize_then_sum, which normalises each reward within its group",
    ),
    Condition(
        ("curriculum_from", "curriculum_floor", "curriculum_half_life"),
        lambda s: s.curriculum is not None,
        "without curriculum: each prompt is drawn once per epoch",
    ),
    Condition(
        ("replay_age", "replay_min_ess"),
        lambda s: s.replay_groups > 0,
        "with replay_groups=0: no group is trained on again",
    ),
    Condition(
        ("truncated_reward", "kl_in_reward"),
        lambda s: s.multi_objective_aggregation == "sum_then_normalize",
        "with normalize_then_sum, which looks at each reward and never at the total",
    ),
    Condition(
        ("truncated_reward",),
        lambda s: s.truncated_in_baseline,
        "with truncated_in_baseline=False: truncated completions get no advantage",
    ),
    Condition(
        ("truncated_in_denominator",),
        lambda s: s.mask_truncated_completions,
        "without mask_truncated_completions: truncated completions are in the loss",
    ),
    Condition(
        ("kl_in_reward", "kl_estimator", "use_bias_correction_kl", "sync_ref_model"),
        lambda s: s.beta != 0,
        "with beta=0: no reference is kept",
    ),
    Condition(
        ("overlong_prompts",),
        lambda s: s.max_prompt_length is not None,
        "without max_prompt_length: a prompt that the model's context cannot hold is always an error",
    ),
    Condition(
        ("use_bias_correction_kl",),
        lambda s: not s.kl_in_reward,
        "with kl_in_reward, where the divergence is a number without gradient",
    ),
    Condition(
        ("ref_model_mixup_alpha", "ref_model_sync_steps"),
        lambda s: s.sync_ref_model,
        "without sync_ref_model",
    ),
    Condition(
        ("entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"),
        lambda s: s.use_adaptive_entropy,
        "without use_adaptive_entropy",
    ),
    Condition(
        ("turn_discount",),
        lambda s: s.credit_assignment == "turn",
        "without credit_assignment='turn'",
    ),
    Condition(
        ("dynamic_sampling_rounds",),
        lambda s: s.dynamic_sampling,
        "without dynamic_sampling",
    ),
    Condition(
        ("dynamic_sampling_rewards",),
        lambda s: s.dynamic_sampling or s.group_allocation == "grow",
        "without dynamic_sampling or group_allocation='grow'",
    ),
    Condition(
        ("group_allocation_first", "group_allocation_success"),
        lambda s: s.group_allocation == "grow",
        "without group_allocation='grow'",
    ),
    Condition(
        ("importance_sampling_mode", "importance_sampling_cap", "importance_sampling_floor"),
        lambda s: s.importance_sampling_correction,
        "without importance_sampling_correction",
    ),
    Condition(
        ("importance_sampling_m2",),
        lambda s: s.importance_sampling_correction and s.importance_sampling_mode == "token_m2",
        "without importance_sampling_mode='token_m2'",
    ),
)


def without_effect(settings: GRPOConfig, defaults: Mapping[str, object]) -> str | None:
    """Return a sentence about the first setting that differs from its default and would do nothing, or None."""
    for name in sorted(LOSS_SETTINGS - LOSS_TYPES[settings.loss_type].settings):
        if getattr(settings, name) != defaults[name]:
            acting = sorted(n for n, t in LOSS_TYPES.items() if name in t.settings)
            return (
                f"{name}={getattr(settings, name)!r} has no effect with loss_type={settings.loss_type!r}. It acts on "
                f"{', '.join(acting)}. Leave it at {defaults[name]!r}, or choose one of these."
            )
    for condition in CONDITIONS:
        for name in condition.settings:
            if getattr(settings, name) != defaults[name] and not condition.holds(settings):
                return (
                    f"{name}={getattr(settings, name)!r} has no effect {condition.reason}. Leave it at "
                    f"{defaults[name]!r}, or change the other."
                )
    return None
