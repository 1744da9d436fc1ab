"""Settings of runs whose policy calls tools, plays in environments, or answers in several turns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from covey.config.validation import defaults, help_text
from covey.errors import ConfigError
from covey.types import CreditAssignment

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

ToolOverflow = Literal["end", "cut"]
"""A result that does not fit into what is left of the completion ends it, or is cut in the middle until it fits."""

ToolSchedule = Literal["fixed", "eager"]
"""A row whose answer is late goes on after a fixed number of steps, or as soon as the answer is there."""


@dataclass
class ToolSettings:
    """Settings that act where GRPOTrainer is given `tools` or an `environment_factory`."""

    max_tool_calling_iterations: int | None = help_text(
        None, "Turns of calls that are answered in a completion. Default: no limit but its length."
    )
    max_turn_length: int | None = help_text(
        None, "Tokens of one turn of the policy; a longer one ends the completion, as its length does."
    )
    max_tool_result: int | None = help_text(
        None, "Tokens of one result; a longer one is cut in the middle. Default: no limit."
    )
    tool_overflow: ToolOverflow = help_text(
        "end", "A result that does not fit into the completion ends it ('end'), or is cut ('cut')."
    )
    tool_timeout: float | None = help_text(
        None, "Seconds of one call that runs in a thread, a process or as a coroutine. Default: no limit."
    )
    episode_timeout: float | None = help_text(
        None, "Seconds that the calls of a completion may take together; then it ends. Default: no limit."
    )
    tool_concurrency: int = help_text(32, "Calls that run side by side at most.")
    tool_schedule: ToolSchedule = help_text(
        "fixed",
        "A row waits a fixed number of steps for a late answer, so that latency changes no bit; 'eager': not at all.",
    )
    tool_format: str | None = help_text(
        None,
        "Format of tool calls: hermes, llama, mistral, ... Default: the one that the chat template writes.",
    )
    credit_assignment: CreditAssignment = help_text(
        "trajectory", "One advantage for the whole 'trajectory', or one for each 'turn'."
    )
    turn_discount: float = help_text(1.0, "What a reward counts for one turn earlier, with turn credit.")


def check_tool_settings(config: GRPOConfig) -> None:
    """Raise where a setting of tools is out of its range, or goes with no other."""
    for name in ("tool_timeout", "episode_timeout"):
        seconds = getattr(config, name)
        if seconds is not None and seconds <= 0:
            raise ConfigError(f"{name} is {seconds}; it is a time in seconds, above 0. None for no limit.")
    if not 0 <= config.turn_discount <= 1:
        raise ConfigError(f"turn_discount is {config.turn_discount}; it must lie between 0 and 1.")
    if config.credit_assignment == "turn" and config.advantage_estimator != "grpo":
        raise ConfigError(
            f"credit_assignment='turn' does not go with advantage_estimator={config.advantage_estimator!r}: turns have the "
            "baseline and scale of 'grpo'. Leave one of the two at its default."
        )
    if config.dynamic_sampling and config.turn_discount < 1:
        raise ConfigError(
            f"turn_discount={config.turn_discount} does not go with dynamic_sampling, which keeps groups whose rewards differ: "
            "with a discount those whose rewards come at different turns teach something too. Leave one of the two out."
        )
    if config.credit_assignment == "turn" and config.multi_objective_aggregation != "sum_then_normalize":
        raise ConfigError(
            "credit_assignment='turn' does not go with multi_objective_aggregation='normalize_then_sum': the rewards of a turn "
            "are summed. Leave one of the two at its default."
        )


def check_needed(config: GRPOConfig, calls_tools: bool) -> None:
    """Raise where a setting of tools is given to a trainer that has none."""
    default = defaults(type(config))
    for setting in fields(ToolSettings) if not calls_tools else ():
        value = getattr(config, setting.name)
        if value != default[setting.name]:
            raise ConfigError(
                f"{setting.name}={value!r} has no effect: GRPOTrainer was given neither tools nor an environment_factory. "
                f"Give one of them, or leave it at {default[setting.name]!r}."
            )
