"""Tool: a function that a policy may call, its schema, and the terms on which it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from covey.errors import ToolError
from covey.tools.decorator import DECORATED, ToolOptions, is_coroutine_function, tool_name
from covey.tools.schema import schema_of


@dataclass(frozen=True)
class Tool:
    """A function as a policy sees it."""

    name: str
    function: Callable[..., Any]
    """What the user gave; of a method, that of the class."""
    schema: Mapping[str, Any]
    options: ToolOptions
    is_method: bool = False
    """It belongs to an environment, and is called on the instance of the completion."""

    @classmethod
    def of(cls, function: Callable[..., Any], is_method: bool = False) -> Tool:
        """Return the tool that a function is.

        Raises:
            ToolError: no callable, or one without a schema; a method that would run in another process.
        """
        if not callable(function):
            raise ToolError(
                f"tools holds {type(function).__name__} {repr(function)[:80]}. A tool is a function with type hints and a docstring."
            )
        options = getattr(function, DECORATED, None) or ToolOptions()
        schema = schema_of(function, options)
        made = cls(options.name or tool_name(function), function, schema, options, is_method)
        if is_method and options.where == "process":
            raise ToolError(
                f"Tool {made.name!r} is a method of an environment, whose state lives in this process: it cannot have "
                "where='process'. Use where='thread'."
            )
        return made

    @property
    def is_inline(self) -> bool:
        """Whether a call runs in the trainer's own thread, where it cannot be interrupted."""
        return self.options.where == "inline" and not is_coroutine_function(self.function)

    @property
    def place(self) -> str:
        """The place of its calls: `inline`, `thread`, `process`, or as coroutines on the `loop`."""
        return "loop" if is_coroutine_function(self.function) else self.options.where

    @property
    def replays(self) -> bool:
        return not self.is_method if self.options.replay is None else self.options.replay


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return tools by their names.

    Raises:
        ToolError: two have the same.
    """
    named: dict[str, Tool] = {}
    for made in tools:
        if made.name in named:
            raise ToolError(
                f"Two tools have the name {made.name!r}, and a call could mean either. Rename one: tool(name=...)."
            )
        named[made.name] = made
    return named
