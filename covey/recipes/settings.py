"""Settings of a dataclass as a recipe says them: names and kinds of values are checked, with the line."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, is_dataclass
from typing import Any, TypeVar

from covey.config.validation import fits_any, is_enum, kinds_of, options, refusal
from covey.errors import ConfigError
from covey.recipes.nodes import Node, nearest, shown

C = TypeVar("C")


def read_settings(
    node: Node, cls: type, also: Mapping[str, str], wider: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Values by name, as the dataclass takes them.

    Args:
        wider: kinds of values that are taken although the class's own annotation is narrower.
        also: names that belong elsewhere in a recipe, and where.

    Raises:
        ConfigError: a name that the class does not have, or a value of another kind than its field's.
    """
    kinds = {**kinds_of(cls), **(wider or {})}
    values = {}
    for name, entry in node.entries(cls.__name__).items():
        if name not in kinds:
            belongs = f" It belongs under {also[name]!r}." if name in also else nearest(name, kinds)
            raise entry.error(f"{cls.__name__} has no setting {name!r}.{belongs}")
        values[name] = _value(name, entry, kinds[name])
    return values


def make(cls: Callable[..., C], values: Mapping[str, Any], node: Node) -> C:
    """The object that the settings describe; what it complains about is said with the line of the setting it names.

    Raises:
        ConfigError: settings that are wrong, or contradict one another.
    """
    try:
        return cls(**values)
    except (ValueError, TypeError, ImportError) as error:
        raise named(str(error), node.value, node).error(str(error), ConfigError) from error


def named(message: str, entries: Mapping[str, Node], otherwise: Node) -> Node:
    """The entry that a message is about: the first that it names, else the first whose value it quotes."""
    places = {name: _position(rf"(?<![\w]){re.escape(name)}(?![\w])", message) for name in entries}
    found = {name: at for name, at in places.items() if at is not None}
    if not found:
        places = {name: _position(re.escape(repr(entry.value)), message) for name, entry in entries.items()}
        found = {n: at for n, at in places.items() if at is not None and isinstance(entries[n].value, str)}
    return entries[min(found, key=lambda name: found[name])] if found else otherwise


def default_of(field: Field[Any]) -> Any:
    """A field's default; None where it has none."""
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


def _value(name: str, node: Node, kind: Any) -> Any:
    value = node.plain()
    if not fits_any(value, kind):
        raise node.error(refusal(name, value, kind, shown=shown(node.value)))
    for option in options(kind):
        if is_enum(option) and isinstance(value, str):
            _check_member(name, node, option)
        if is_dataclass(option) and isinstance(option, type) and isinstance(value, dict):
            return make(option, value, node)
    return value


def _check_member(name: str, node: Node, kind: type[enum.Enum]) -> None:
    members = [str(member.value) for member in kind]
    if node.value not in members:
        hint = nearest(node.value, members) or f" It is one of {', '.join(members)}."
        raise node.error(f"{name} is {node.value!r}, which is none of its values.{hint}")


def _position(pattern: str, message: str) -> int | None:
    match = re.search(pattern, message)
    return match.start() if match else None
