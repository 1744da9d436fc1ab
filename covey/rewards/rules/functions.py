"""The reward functions of the first GRPO tutorials under their own names, on top of the safe parts.

They take a completion as it comes after a prompt that ends in `<think>`, or with the tag repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.rewards.rules.countdown import Countdown
from covey.rewards.rules.formats import ThinkFormat
from covey.types import PromptContent

_strict_format = ThinkFormat(strict=True)
_subset = Countdown("subset")


def format_reward_func(
    completions: Sequence[PromptContent],
    target: object = None,
    prompts: Sequence[PromptContent] | None = None,
    **_: object,
) -> list[float]:
    """Return 1.0 for `<think>…</think>`, one line break, `<answer>…</answer>`, else 0.0. The answer's content does not matter.

    `target` is not read.
    """
    return _strict_format(completions, prompts)


def simple_math_reward_func(
    completions: Sequence[PromptContent], target: Sequence[object], nums: Sequence[object], **_: object
) -> list[float | None]:
    """`Countdown(rule="subset")`: 1.0 where the answer is an expression over `nums` with the value `target`."""
    return _subset(completions, nums, target)
