"""Settings of the tasks of a run: their shares of the prompts, and their say in the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.config.validation import help_text
from covey.errors import ConfigError
from covey.types import TaskWeights

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig


@dataclass
class TaskSettings:
    """Settings of budgets per task."""

    task_shares: dict[str, float] | str | None = help_text(
        None,
        "Shares of the prompts by task, in proportion to one another; 0 leaves a task out. Default: each prompt once per epoch.",
    )
    task_weights: TaskWeights | None = help_text(
        None,
        "'equal': each task has the same part of the gradient, whatever the size of its rewards, and the number and length of its "
        "completions. Default: what these come to.",
    )


def check_task_settings(config: GRPOConfig) -> None:
    """Raise where shares of tasks are no numbers in proportion to one another."""
    shares = config.task_shares
    if shares is None:
        return
    assert isinstance(shares, dict), "read from JSON before"
    for name, share in shares.items():
        if not isinstance(name, str):
            raise ConfigError(
                f"task_shares names the task {name!r}; tasks are known by text: write {str(name)!r}."
            )
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 <= share < math.inf:
            raise ConfigError(
                f"task_shares[{name!r}] is {share!r}; it must be a number, at least 0: the task's share of the prompts, in proportion to the others."
            )
    if not any(shares.values()):
        raise ConfigError(
            f"task_shares is {shares!r}: it leaves every task out. Give at least one task a share above 0, or leave the setting out."
        )
