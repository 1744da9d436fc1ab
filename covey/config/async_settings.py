"""Settings of runs that sample ahead: rollouts are sampled, and their rewards run, while the policy is updated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.config.choices import LOSS_TYPES
from covey.config.validation import help_text
from covey.errors import ConfigError, warn

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

FAR = 2
"""Rollouts ahead up to which the weights of the correction stay near 1 at usual learning rates."""


@dataclass
class AsyncSettings:
    """Settings of sampling ahead of the update."""

    async_lag: int = help_text(
        0,
        "Rollouts that are sampled ahead, each with the weights as they were so many rollouts before it is trained on. 0: none.",
    )
    async_in_flight: bool = help_text(
        False,
        "With async_lag: weights change under requests that are running, where the engine can. Quicker, and not reproducible.",
    )
    max_staleness: int | None = help_text(
        None,
        "With async_in_flight: completions whose weights are more than so many optimizer steps old when their rollout is trained on "
        "are left out. Default: none are.",
    )


def check_async_settings(config: GRPOConfig) -> None:
    """Raise where settings of sampling ahead contradict others or do nothing; warn where samples get old, or are not corrected."""
    lag = config.async_lag
    if config.async_in_flight and not lag:
        raise ConfigError(
            "async_in_flight=True has no effect with async_lag=0: nothing is being sampled when weights change. Set async_lag=1, or "
            "leave it out."
        )
    if config.max_staleness is not None and not config.async_in_flight:
        raise ConfigError(
            f"max_staleness={config.max_staleness} has no effect without async_in_flight: every rollout is sampled with weights that are "
            f"async_lag={lag} rollouts old, neither more nor less. Leave it out; a smaller async_lag gives fresher samples."
        )
    if lag and config.kl_in_reward:
        raise ConfigError(
            f"async_lag={lag} does not go with kl_in_reward: the divergence needs a pass of the policy before rewards are summed, and "
            "the policy is being updated then. Set kl_in_reward=False, which puts the divergence into the loss, or async_lag=0."
        )
    if lag > FAR:
        warn(
            f"async_lag={lag}: samples are {lag} rollouts old when they are trained on, and more than {FAR} cost quality. Lower it; or "
            "hold on to it with importance_sampling_mode='token_m2' and off_policy_mask_threshold, and watch sampling/ess."
        )
    if lag and LOSS_TYPES[config.loss_type].is_corrected and not config.importance_sampling_correction:
        warn(
            f"async_lag={lag} with importance_sampling_correction=False: samples come from weights that are {lag} rollouts old, and are "
            "trained on as if they came from the present ones. Leave the correction on."
        )
