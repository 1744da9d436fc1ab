"""`@tool(...)`: the terms on which a function is called as a tool. They ride on the function, which stays as it is."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_args

from covey.errors import ToolError

F = TypeVar("F", bound=Callable[..., Any])

ToolPlace = Literal["inline", "thread", "process"]
"""Place that a tool runs in, which decides what a deadline can mean.

`inline`   in the trainer's own thread, in the order of the calls. It cannot be interrupted, so it takes no deadline
`thread`   in a thread. At the deadline it is given up: its result is dropped, but it runs on
`process`  in a process of its own. At the deadline it is killed
A coroutine function runs on an event loop, beside all others; at the deadline it is cancelled where it next awaits.
"""

OnToolError = Literal["tell", "fail", "raise"]
"""The effect of an exception or a deadline: the policy reads it; the sample has no score; the run ends."""

DECORATED = "covey_tool_options"
"""The attribute in which `@tool` leaves the options."""


@dataclass(frozen=True)
class ToolOptions:
    """The terms of one tool. The defaults are those of a plain function in a list."""

    name: str | None = None
    """The name that the policy calls it by; None: the function's own."""
    where: ToolPlace = "inline"
    timeout: float | None = None
    """Seconds per call; None: `tool_timeout` of the run."""
    max_result: int | None = None
    """Tokens of a result that are kept, from its start and its end; None: `max_tool_result` of the run."""
    ends: bool = False
    """A call that succeeds ends the episode: nothing is sampled behind its result."""
    on_error: OnToolError = "tell"
    replay: bool | None = None
    """Take a result that was noted before the run stopped, rather than call again; None: yes, but for methods of
    environments, whose state a call changes."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the function, instead of the one that its hints and docstring give."""

    @classmethod
    def of(cls, function: object, **given: Any) -> ToolOptions:
        """Return options as users write them, checked.

        Raises:
            ToolError: an option that does not exist, a wrong value, or a deadline that could not be kept.
        """
        who = f"Tool {tool_name(function)!r}"
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise ToolError(
                f"{who}: there is no option {', '.join(map(repr, unknown))}. Options are {', '.join(known)}."
            )
        options = cls(**given)
        options._check(who, is_coroutine_function(function))
        return options

    def _check(self, who: str, is_async: bool) -> None:
        for option, choices in (("where", get_args(ToolPlace)), ("on_error", get_args(OnToolError))):
            if (value := getattr(self, option)) not in choices:
                raise ToolError(f"{who}: {option}={value!r}; {option} is one of {', '.join(choices)}.")
        for option in ("ends", "replay"):
            if (value := getattr(self, option)) not in (True, False, None):
                raise ToolError(f"{who}: {option}={value!r}; it is True or False.")
        if self.timeout is not None and not is_positive(self.timeout):
            raise ToolError(f"{who}: timeout={self.timeout!r}; it is a number of seconds above 0.")
        most = self.max_result
        if most is not None and not (isinstance(most, int) and is_positive(most)):
            raise ToolError(f"{who}: max_result={most!r}; it is a number of tokens above 0.")
        if self.timeout is not None and self.where == "inline" and not is_async:
            raise ToolError(
                f"{who}: timeout={self.timeout} with where='inline'. A call in the trainer's own thread cannot be interrupted: "
                "use where='thread' or where='process', or make it a coroutine function."
            )
        if self.where != "inline" and is_async:
            mended = f"leave where={self.where!r} out"
            raise ToolError(f"{who} is a coroutine function, which runs on an event loop: {mended}.")


def tool(function: F | None = None, /, **options: Any) -> Any:
    """Return the function itself, with the terms on which it is called as a tool.

    Used as `@tool`, as `@tool(where="thread", timeout=10)`, or as `tool(ends=True)(function)`.

    Args:
        options: see `ToolOptions`.

    Raises:
        ToolError: an option that does not exist or cannot be kept; no function.
    """
    if function is None:
        return lambda inner: tool(inner, **options)
    if not callable(function):
        raise ToolError(
            f"tool(...) got {type(function).__name__} {function!r}. A tool is a function; options go by name."
        )
    try:
        setattr(function, DECORATED, ToolOptions.of(function, **options))
    except AttributeError:
        raise ToolError(
            f"Tool {tool_name(function)!r} is a {type(function).__name__}, which takes no attributes. Decorate the function "
            "inside, or write a function around it."
        ) from None
    return function


def tool_name(function: object) -> str:
    """Return the name of a function as a tool, by itself; of an object that of its class."""
    return str(getattr(function, "__name__", None) or type(function).__name__)


def is_coroutine_function(function: object) -> bool:
    """Return whether calling this gives something to wait for; of an object its `__call__` is asked."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asked for its kind, not whether it is there
    )


def is_positive(value: object) -> bool:
    """Return whether a value is a finite number above 0."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
