"""`reward`: says under what terms a function takes part in a mixture, and leaves the function what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from covey.rewards.contract import Reward, options_of
from covey.rewards.names import DECORATED, reward_name

F = TypeVar("F", bound=Callable[..., Any])


def reward(function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Give a reward its terms, as a decorator or as a call.

        @reward(weight=0.5, tasks="code", requires="format")
        def tidy(completions, **_):
            return [...]

        Mixture(ThinkFormat(), reward(Countdown(), weight=2.0, tasks={"countdown"}))

    A decorated function stays a plain function that any trainer can call. The call form gives a new `Reward` beside the
    function, so one function can take part twice under different terms.

    Args:
        name: what metrics call it.
        options: those of `RewardOptions`.

    Raises:
        RewardError: an option that does not exist or cannot be kept.
    """
    if function is not None:
        return Reward(function, name or reward_name(function), options_of(function, **options))

    def decorate(decorated: F) -> F:
        called = name or reward_name(decorated)
        setattr(decorated, DECORATED, (called, options_of(decorated, **options)))
        Reward(decorated, called)  # says now what a mixture would say later
        return decorated

    return decorate
