"""Settings of a dataclass in a recipe: names and kinds of values are checked, and errors have the line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, is_dataclass
from typing import TypeVar

from covey.config.validation import fits, is_enum, kinds_of, options, refusal
from covey.errors import ConfigError
from covey.recipes.nodes import Node, nearest, shown

C = TypeVar("C")


def read_settings(
    node: Node, cls: type, also: Mapping[str, str], wider: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Read the values of settings by name, as the dataclass takes them.

    Args:
        also: names that belong elsewhere in a recipe, and where.
        wider: kinds of values that are taken although the class's own annotation is narrower.

    Raises:
        ConfigError: a name that the class does not have, or a value of another kind than its field's.
    """
    kinds = {**kinds_of(cls), **(wider or {})}
    values = {}
    for name, entry in node.entries(cls.__name__).items():
        if name not in kinds:
            belongs = f" It belongs under {also[name]!r}." if name in also else nearest(name, kinds)
            raise entry.error(f"{cls.__name__} has no setting {name!r}.{belongs}")
        values[name] = read_setting(name, entry, kinds[name])
    return values


def read_setting(name: str, node: Node, kind: object) -> object:
    """Read one value; a mapping becomes the dataclass that the field holds.

    Raises:
        ConfigError: a value of another kind, or none of those that an enumeration has.
    """
    value = node.plain()
    if not fits(value, kind):
        raise node.error(refusal(name, value, kind, shown=shown(node.value)))
    for option in options(kind):
        if is_enum(option) and isinstance(value, str):
            members = [str(member.value) for member in option]
            if value not in members:
                hint = nearest(value, members) or f" It is one of {', '.join(members)}."
                raise node.error(f"{name} is {value!r}, which is none of its values.{hint}")
        if is_dataclass(option) and isinstance(option, type) and isinstance(value, dict):
            return make(option, value, node)
    return value


def make(cls: Callable[..., C], values: Mapping[str, object], node: Node) -> C:
    """Make the object that the settings describe; an error has the line of the setting that it names.

    Raises:
        ConfigError: settings that are wrong, or contradict one another.
    """
    try:
        return cls(**values)
    except (ValueError, TypeError, ImportError) as error:
        raise named(str(error), node.entries("settings"), node).error(str(error), ConfigError) from error


def named(message: str, entries: Mapping[str, Node], otherwise: Node) -> Node:
    """Return the entry that a message is about: the first that it names, else the first whose value it quotes."""
    names = {name: re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", message) for name in entries}
    quotes = {
        name: re.search(re.escape(repr(entry.value)), message)
        for name, entry in entries.items()
        if isinstance(entry.value, str)
    }
    for matches in (names, quotes):
        found = {name: match.start() for name, match in matches.items() if match}
        if found:
            return entries[min(found, key=found.__getitem__)]
    return otherwise


def default_of(field: Field[object]) -> object:
    """Return a field's default; None where it has none."""
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None
