"""Names → objects: `module:attribute`, or a bundled object by its name; and their arguments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from covey.errors import ConfigError, CoveyError
from covey.recipes.nodes import Node, nearest
from covey.recipes.settings import named
from covey.rewards.signature import judges, open_parameters

CALL = "call"
"""In arguments, a mapping with this key is an object to be made: its name, and its `arguments`."""

Function = Callable[..., object]
"""A function, a class, or another object that can be called; whether it can is not checked here."""

T = TypeVar("T")


def import_object(path: str) -> Function:
    """Import the object at `module:attribute`; modules of the working directory are found.

    Raises:
        ConfigError: there is no such module, or nothing of that name in it.
    """
    module, separator, attribute = path.partition(":")
    if not separator or not module or not attribute:
        raise ConfigError(f"{path!r} names no function; write MODULE:NAME, for example my_rewards:accuracy.")
    folder = str(Path.cwd())
    if "" not in sys.path and folder not in sys.path:  # stays: processes that rewards start look there too
        sys.path.insert(0, folder)
    try:
        found: Any = functools.reduce(getattr, attribute.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{path!r} cannot be imported: {error}.") from error
    except Exception as error:  # whatever the user's module does while it is imported
        raise ConfigError(f"{path!r} cannot be imported: {type(error).__name__}: {error}.") from error
    return found


def imported(node: Node) -> Function:
    """Import the object that a node names as `module:attribute`; errors have its line."""
    path = node.text("a function")
    try:
        return import_object(path)
    except ConfigError as error:
        raise node.error(str(error)) from error


def named_object(
    node: Node, what: str, bundled: Collection[str], find: Callable[[str], Function]
) -> Function:
    """Return the object that a recipe names: a bundled one by its name, or `module:attribute`.

    Args:
        what: what is named, for messages.
        bundled: names of the bundled objects.
        find: returns a bundled object by its name; called for the one that is used, because imports are slow.

    Raises:
        ConfigError: there is no such object.
    """
    name = node.text(what)
    if ":" in name:
        return imported(node)
    if name not in bundled:
        hint = nearest(name, bundled) or f" Bundled are {', '.join(bundled)}."
        raise node.error(f"there is no bundled {what} {name!r}.{hint} Your own is MODULE:NAME.")
    return find(name)


def named_reward(node: Node, what: str = "reward") -> Function:
    """Return what a recipe names among the names of `covey.rewards`, or `module:attribute`.

    Raises:
        ConfigError: there is no such object.
    """
    import covey.rewards

    return named_object(node, what, covey.rewards.__all__, functools.partial(getattr, covey.rewards))


def made(function: Function, arguments: Node | None, name: str) -> Function:
    """Return an object with its arguments: a class is called with them, a function has them bound.

    A function that sees no completions once they are bound makes a reward and is none: it is called too.

    Raises:
        ConfigError: an argument that it does not take, one that is missing, or one that it refuses.
    """
    positional, keywords = bound(function, arguments, name)
    if isinstance(function, type):
        return called(function, positional, keywords, arguments, name)
    if not positional and not keywords:
        return function
    whole = functools.partial(function, *positional, **keywords)
    if judges(open_parameters(whole)):
        return whole
    maker = cast(Callable[..., Function], function)  # what it makes is checked where the reward is
    return called(maker, positional, keywords, arguments, name)


def called(
    function: Callable[..., T],
    positional: Iterable[object],
    keywords: Mapping[str, object],
    arguments: Node | None,
    name: str,
) -> T:
    """Call a function and return its result; an error has the line of the argument that it names.

    Raises:
        ConfigError: the call raised TypeError or ValueError.
    """
    try:
        return function(*positional, **keywords)
    except (TypeError, ValueError) as error:
        kind = type(error) if isinstance(error, CoveyError) else ConfigError
        if arguments is None:
            raise kind(f"{name}: {error}") from error
        entries = arguments.value if isinstance(arguments.value, dict) else {}
        raise named(str(error), entries, arguments).error(f"{name}: {error}", kind) from error


def bound(function: Function, arguments: Node | None, name: str) -> tuple[list[object], dict[str, object]]:
    """Return positional and keyword arguments for a call; objects among them are made.

    A list for a parameter like `*names` is passed by position.

    Raises:
        ConfigError: an argument that the function does not take.
    """
    given = {} if arguments is None else arguments.entries(f"arguments of {name}")
    if not given:
        return [], {}
    parameters = {p.name: p for p in open_parameters(function)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    positional: list[object] = []
    keywords: dict[str, object] = {}
    for key, node in given.items():
        parameter = parameters.get(key)
        if parameter is None and not takes_any:
            known = [p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD]
            hint = nearest(key, known) or f" It takes {', '.join(known) or 'none'}."
            raise node.error(f"{name} takes no argument {key!r}.{hint}")
        if parameter is not None and parameter.kind is parameter.VAR_POSITIONAL:
            positional = [_argument(item) for item in node.items(key)]
        else:
            keywords[key] = _argument(node)
    return positional, keywords


def _argument(node: Node) -> object:
    """Return a plain value, or the object that `call` names, made."""
    if isinstance(node.value, list):
        return [_argument(item) for item in node.value]
    if not isinstance(node.value, dict):
        return node.value
    if CALL not in node.value:
        return {key: _argument(part) for key, part in node.value.items()}
    entries = node.entries("an object", (CALL, "arguments"))
    function, name = named_reward(entries[CALL], "object"), entries[CALL].text("object")
    arguments = entries.get("arguments")
    positional, keywords = bound(function, arguments, name)
    return called(function, positional, keywords, arguments or node, name)
