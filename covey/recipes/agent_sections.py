"""The sections of a recipe that answer the policy → arguments of GRPOTrainer.

tools:
  - my_tools:search                          # MODULE:NAME
  - tool: my_tools:fetch
    timeout: 10                              # options of covey.tools.tool
    where: thread
  - tool: Search                             # a class: made of its arguments, and asked for a method
    arguments: {corpus: documents.jsonl}
    method: search
environment: Python                          # bundled, by name, or MODULE:NAME
environment:
  environment: Python
  arguments: {seconds: 2}
environment: {shop: my_envs:Shop, maze: my_envs:Maze}     # by the column `environment`
rollout: my_rollouts:play
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from covey.errors import ToolError
from covey.recipes.nodes import Node
from covey.recipes.objects import Function, bound, called, named_object
from covey.tools.decorator import ToolOptions, tool

TOOL_KEYS = ("tool", "arguments", "method", *(field.name for field in fields(ToolOptions)))
ENVIRONMENT_KEYS = ("environment", "arguments")
BUNDLED_TOOLS = ("Python", "Search")


def check_agent_nodes(sections: dict[str, Node]) -> None:
    """Check the form of these sections; nothing is imported.

    Raises:
        ConfigError: an unknown key, or an item that names nothing.
    """
    for item in sections["tools"].items("tools") if "tools" in sections else ():
        if not isinstance(item.value, str) and "tool" not in item.entries("a tool", TOOL_KEYS):
            raise item.error("a tool has no 'tool': give its name, MODULE:NAME.")
    node = sections.get("environment")
    if node is None or isinstance(node.value, str):
        return
    if "environment" in node.entries("environment"):
        node.entries("environment", ENVIRONMENT_KEYS)


def make_tools(node: Node) -> list[Callable[..., Any]]:
    """Import the tools of a recipe, each on its terms.

    Raises:
        ConfigError: one that is not there, or an option or argument that it does not take.
    """
    return [_tool(item) for item in node.items("tools")]


def _tool(item: Node) -> Callable[..., Any]:
    entries = item.entries("a tool", TOOL_KEYS) if isinstance(item.value, dict) else {"tool": item}
    found = _made(entries["tool"], entries.get("arguments"), "tool")
    if "method" in entries:
        method = entries["method"].text("a method")
        if not hasattr(found, method):
            raise entries["method"].error(f"{entries['tool'].value} has no method {method!r}.")
        found = getattr(found, method)
    if not callable(found):
        raise item.error(f"{entries['tool'].value} cannot be called. Name its method: method: NAME.")
    own = ("tool", "arguments", "method")
    options = {name: part.plain() for name, part in entries.items() if name not in own}
    try:
        return tool(**options)(found) if options else found
    except ToolError as error:
        raise item.error(str(error), ToolError) from error


def make_environment(node: Node) -> Any:
    """Import the environment of a recipe, or several by name.

    Raises:
        ConfigError: one that is not there, or an argument that it does not take.
    """
    if isinstance(node.value, str):
        return _factory(node, None)
    entries = node.entries("environment")
    if "environment" in entries:
        return _factory(entries["environment"], entries.get("arguments"))
    return {name: make_environment(part) for name, part in entries.items()}


def _factory(node: Node, arguments: Node | None) -> Function:
    """Return what makes an instance: a class with its arguments bound, or an object that a class of factories makes."""
    found = _named(node, "environment")
    if isinstance(found, type) and not hasattr(found, "reset"):
        return _made(node, arguments, "environment")
    if arguments is None:
        return found
    positional, keywords = bound(found, arguments, node.text("environment"))
    return functools.partial(found, *positional, **keywords)


def _made(node: Node, arguments: Node | None, what: str) -> Any:
    """Return a function as it is, or the object that a class makes of its arguments."""
    found, name = _named(node, what), node.text(what)
    if not isinstance(found, type):
        if arguments is not None:
            raise arguments.error(f"{name} is no class, and takes no arguments here.")
        return found
    positional, keywords = bound(found, arguments, name)
    return called(found, positional, keywords, arguments or node, name)


def _named(node: Node, what: str) -> Function:
    import covey.tools

    return named_object(node, what, BUNDLED_TOOLS, functools.partial(getattr, covey.tools))
