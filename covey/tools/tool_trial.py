"""A call of each tool with made-up arguments, before a run: does it answer, how long does it take, is it the same twice?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import ToolError
from covey.rewards.execution.loop import awaited
from covey.tools.calling import Caller
from covey.tools.environments import Environments
from covey.tools.planned_call import with_text
from covey.tools.result_text import message_of
from covey.tools.tool_contract import Tool

SECONDS = 10.0
"""Deadline of a call, where the tool has none of its own and can be interrupted."""
MADE_UP: dict[str, Any] = {"string": "test", "integer": 1, "number": 1.5, "boolean": True, "null": None}


@dataclass(frozen=True)
class ToolTrial:
    """Result of two calls of one tool with the same made-up arguments."""

    name: str
    place: str
    """Where its calls run."""
    arguments: Mapping[str, Any]
    status: str
    text: str
    """The text that a policy would read."""
    seconds: float
    """Of the longer call."""
    is_repeatable: bool
    """Whether both calls said the same."""


def try_tools(
    tools: Sequence[Any], environments: Environments | None, row: Mapping[str, Any]
) -> Iterator[ToolTrial]:
    """Yield the trial of each tool, and of each method of a fresh environment that was reset with a row of the dataset.

    Raises:
        ToolError: a tool without a schema, or an environment that cannot be made or reset.
    """
    caller = Caller(1)
    try:
        for tool in map(Tool.of, tools):
            yield tried(caller, tool, tool.function)
        if environments is not None:
            yield from try_methods(caller, environments, row)
    finally:
        caller.close()
        if environments is not None:
            environments.close()


def try_methods(caller: Caller, environments: Environments, row: Mapping[str, Any]) -> Iterator[ToolTrial]:
    """Yield the trial of each method of a fresh environment of each kind."""
    for kind in environments.kinds.values():
        instance = environments.take(kind)
        try:
            awaited(instance.reset(**kind.reset_arguments(row, 0)))
        except Exception as error:  # code of the user's
            raise ToolError(
                f"{kind.title}.reset raised {type(error).__name__} for the first row: {message_of(error)}"
            ) from error
        for tool in kind.tools:
            yield tried(caller, tool, getattr(instance, tool.function.__name__))


def tried(caller: Caller, tool: Tool, function: Any) -> ToolTrial:
    """Return what two calls of a tool come to."""
    parameters = tool.schema["function"].get("parameters", {})
    needed = parameters.get("required", [])
    arguments = {n: made_up(s) for n, s in parameters.get("properties", {}).items() if n in needed}
    deadline = tool.options.timeout or SECONDS
    outcomes = [caller.start(tool, function, arguments, deadline).outcome() for _ in range(2)]
    (first, text), (second, again) = (with_text(outcome, tool.name) for outcome in outcomes)
    seconds = max(first.seconds, second.seconds)
    return ToolTrial(tool.name, tool.place, arguments, first.status, text, seconds, text == again)


def made_up(schema: Mapping[str, Any]) -> Any:
    """Return a value that fits a schema: the first of its choices, or one of its type."""
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else next(iter(kinds), "string")
    if kind == "array":
        return [made_up(schema.get("items", {}))]
    if kind == "object":
        return {name: made_up(part) for name, part in schema.get("properties", {}).items()}
    return MADE_UP.get(kind, "test")
