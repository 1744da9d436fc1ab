"""Settings of replay: groups of earlier rollouts that are trained on again, in place of fresh ones; see `covey.score.replay_buffer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.config.sampling_names import lacks_policy_logprobs
from covey.config.validation import help_text, within
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig


@dataclass
class ReplaySettings:
    """Settings of replay."""

    replay_groups: int = help_text(
        0,
        "Groups of a rollout, over all processes, that are drawn from earlier rollouts instead of being sampled: those whose completions "
        "disagreed, with the correction for the policy that sampled them. 0: none.",
    )
    replay_age: int = help_text(
        4,
        "With replay_groups: rollouts that a group may be drawn again for; older ones leave the buffer.",
    )
    replay_min_ess: float = help_text(
        0.5,
        "With replay_groups: a group whose completions have a smaller effective sample size, as a share of their number, leaves the "
        "buffer, and its place is sampled. 0: none does.",
    )


ACROSS = "it measures a completion against other groups of its rollout, which are gone"

UNFIT: tuple[tuple[str, Callable[[GRPOConfig], bool], str], ...] = (
    (
        "async_lag",
        lambda c: c.async_lag > 0,
        "a rollout that is sampled ahead begins before the policy is known that it is trained with, and so before it is known which "
        "groups can take places in it. Set async_lag=0",
    ),
    (
        "group_allocation",
        lambda c: c.group_allocation == "grow",
        "groups that grow share the completions of their own step. Use 'equal'",
    ),
    (
        "task_shares",
        lambda c: c.task_shares is not None,
        "it gives each task its share of the prompts, and old groups take places whatever their task is. Leave it out",
    ),
    (
        "task_weights",
        lambda c: c.task_weights is not None,
        "it measures what each task has to say in a rollout, where old groups weigh less than fresh ones. Leave it out",
    ),
    (
        "kl_in_reward",
        lambda c: c.kl_in_reward,
        "the divergence in the reward of an old group is that of the policy of then. Set kl_in_reward=False, which puts it into the loss",
    ),
    (
        "scale_rewards",
        lambda c: c.advantage_estimator == "grpo" and c.scale_rewards == "batch",
        f"{ACROSS}. Use 'group' or 'none'",
    ),
    (
        "multi_objective_aggregation",
        lambda c: c.advantage_estimator == "grpo" and c.multi_objective_aggregation == "normalize_then_sum",
        f"{ACROSS}. Use 'sum_then_normalize'",
    ),
    (
        "advantage_estimator",
        lambda c: c.advantage_estimator == "reinforce_pp",
        f"{ACROSS}. Use 'grpo' or 'rloo'",
    ),
    (
        "importance_sampling_correction",
        lambda c: not c.importance_sampling_correction and c.loss_type != "dppo",
        "old samples would be trained on as if the present policy had drawn them. Leave it on",
    ),
    (
        "engine",
        lacks_policy_logprobs,
        "it draws from a changed distribution (top_p, top_k, min_p, a penalty, or options of its own) and does not say what the policy's "
        "own would have given, which the correction needs. Leave these settings at their defaults, or use 'native'",
    ),
)
"""Settings beside which a group cannot be trained on again, or not corrected: when, and why."""


def check_replay_settings(config: GRPOConfig) -> None:
    """Raise where a setting of replay is out of its range, or replay goes with no other setting."""
    within("replay_min_ess", config.replay_min_ess, 0.0, 1.0)
    for name, is_unfit, reason in UNFIT if config.replay_groups else ():
        if is_unfit(config):
            raise ConfigError(
                f"{name}={getattr(config, name)!r} does not go with replay_groups={config.replay_groups}: {reason}."
            )
