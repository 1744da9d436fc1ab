"""Names → objects: `module:attribute`, or what Covey brings along under a name of its own; and their arguments."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from covey.errors import ConfigError, CoveyError
from covey.recipes.nodes import Node, nearest
from covey.recipes.settings import named

CALL = "call"
"""In arguments, a mapping with this key is an object to be made: its name, and its `arguments`."""


def import_object(path: str) -> Any:
    """What stands at `module:attribute`; modules of the working directory are found.

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
        return functools.reduce(getattr, attribute.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{path!r} cannot be imported: {error}.") from error
    except Exception as error:  # whatever the user's module does while it is imported
        raise ConfigError(f"{path!r} cannot be imported: {type(error).__name__}: {error}.") from error


def imported(node: Node) -> Any:
    """What `module:attribute` names; what is wrong with it is said with its line."""
    path = node.text("a function")
    try:
        return import_object(path)
    except ConfigError as error:
        raise node.error(str(error)) from error


def named_object(node: Node, bundled: Mapping[str, Callable[[], Any]], what: str) -> Any:
    """What a recipe names: a bundled object by its name, or `module:attribute`.

    Args:
        bundled: how each bundled object is imported, by name.
        what: what is named, for messages.

    Raises:
        ConfigError: there is no such thing.
    """
    name = node.text(what)
    if ":" in name:
        return imported(node)
    if name not in bundled:
        hint = nearest(name, bundled) or f" Bundled are {', '.join(bundled)}."
        raise node.error(f"there is no bundled {what} {name!r}.{hint} Your own is MODULE:NAME.")
    return bundled[name]()


def bundled_rewards() -> dict[str, Callable[[], Any]]:
    """Everything that `covey.rewards` exports, by name."""
    import covey.rewards

    return {name: functools.partial(getattr, covey.rewards, name) for name in covey.rewards.__all__}


def made(function: Any, arguments: Node | None, name: str) -> Any:
    """An object with its arguments: a class is called with them, a function has them bound.

    Raises:
        ConfigError: an argument that it does not take, one that is missing, or one that it refuses.
    """
    given = {} if arguments is None else arguments.entries(f"arguments of {name}")
    positional, keywords = _bound(function, given, name)
    if not isinstance(function, type):
        return functools.partial(function, *positional, **keywords) if given else function
    return called(function, positional, keywords, arguments, name)


def called(
    function: Callable[..., Any],
    positional: Iterable[Any],
    keywords: Mapping[str, Any],
    arguments: Node | None,
    name: str,
) -> Any:
    """What a call gives; what it complains about is said with the line of the argument that it names.

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


def keyword_arguments(function: Any, arguments: Node | None, name: str) -> dict[str, Any]:
    """Arguments for a call, checked against the signature; nested objects are made.

    Raises:
        ConfigError: an argument that the function does not take.
    """
    given = {} if arguments is None else arguments.entries(f"arguments of {name}")
    return _bound(function, given, name)[1]


def _bound(function: Any, given: Mapping[str, Node], name: str) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments; a list for `*names` is passed by position."""
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
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


def _argument(node: Node) -> Any:
    """A plain value, or the object that `call` names, made."""
    if isinstance(node.value, list):
        return [_argument(item) for item in node.value]
    if not isinstance(node.value, dict):
        return node.value
    if CALL not in node.value:
        return {key: _argument(part) for key, part in node.value.items()}
    entries = node.entries("an object", (CALL, "arguments"))
    function = named_object(entries[CALL], bundled_rewards(), "object")
    name = entries[CALL].value
    arguments = entries.get("arguments")
    given = {} if arguments is None else arguments.entries(f"arguments of {name}")
    return called(function, *_bound(function, given, name), arguments or node, name)
