"""Settings of groups that grow while they teach; see `covey.score.allocation`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.config.choices import LOSS_TYPES
from covey.config.validation import help_text
from covey.errors import ConfigError
from covey.types import GroupAllocation

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig


@dataclass
class AllocationSettings:
    """Settings of where the completions of a step go."""

    group_allocation: GroupAllocation = help_text(
        "equal",
        "All prompts get num_generations completions ('equal'), or that many on average, none more where the first ones all succeed "
        "('grow').",
    )
    group_allocation_first: int | None = help_text(
        None,
        "With 'grow': completions of each prompt before it is decided which groups grow. Default: half of num_generations.",
    )
    group_allocation_success: float = help_text(
        1.0,
        "With 'grow': a completion succeeds where every reward that applies to it gives at least this; see dynamic_sampling_rewards.",
    )


def growing_first(config: GRPOConfig) -> int | None:
    """Return the completions of each prompt before groups grow; None: they do not."""
    if config.group_allocation == "equal":
        return None
    first = config.group_allocation_first
    return max(2, config.num_generations // 2) if first is None else first


AMONG_ALL = "it chooses among the tokens of the step, of which a group that grew has more. Leave it out"

UNFIT: tuple[tuple[str, Callable[[GRPOConfig], bool], str], ...] = (
    (
        "advantage_estimator",
        lambda c: c.advantage_estimator not in ("grpo", "rloo"),
        "its mean hangs on the size of the group. Use 'rloo', or 'grpo' with scale_rewards='none'",
    ),
    (
        "multi_objective_aggregation",
        lambda c: c.multi_objective_aggregation != "sum_then_normalize",
        "it divides by deviations, whose mean hangs on the size of the group. Use 'sum_then_normalize' with scale_rewards='none'",
    ),
    (
        "scale_rewards",
        lambda c: c.advantage_estimator == "grpo" and c.scale_rewards != "none",
        "the mean of an advantage over a deviation hangs on the size of the group. Use scale_rewards='none' or advantage_estimator='rloo'",
    ),
    (
        "credit_assignment",
        lambda c: c.credit_assignment == "turn",
        "turns have a baseline of their own, for groups of one size. Use 'trajectory'",
    ),
    (
        "loss_type",
        lambda c: LOSS_TYPES[c.loss_type].reduction == "bnpo",
        "it weighs micro-batches alike, and so a prompt by the micro-batches that its group fills. Use 'dapo' or another",
    ),
    (
        "task_weights",
        lambda c: c.task_weights is not None,
        "its factors hang on what all groups earned, and so does the mean of the gradient. Leave it out",
    ),
    ("loss_type", lambda c: c.loss_type in ("clip_cov", "kl_cov"), AMONG_ALL),
    ("top_entropy_quantile", lambda c: c.top_entropy_quantile < 1, AMONG_ALL),
    ("importance_sampling_mode", lambda c: c.importance_sampling_mode == "token_m2", AMONG_ALL),
)
"""Settings under which the mean of the gradient would not be that of equal groups: when, and why."""


def check_allocation_settings(config: GRPOConfig) -> None:
    """Raise where groups that grow have no room, or go with no other setting."""
    first, size = growing_first(config), config.num_generations
    if first is None:
        return
    if not 2 <= first < size:
        raise ConfigError(
            f"group_allocation_first is {first}, and num_generations {size}: a group begins with at least 2 completions, which are "
            f"judged against each other, and has room to grow. Set it between 2 and {max(2, size - 1)}, or raise num_generations to at least 3."
        )
    for name, is_unfit, reason in UNFIT:
        if is_unfit(config):
            raise ConfigError(
                f"{name}={getattr(config, name)!r} does not go with group_allocation='grow': {reason}."
            )
