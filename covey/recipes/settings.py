"""Settings of a dataclass as a recipe says them: names and kinds of values are checked, with the line."""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union

from covey.errors import ConfigError
from covey.recipes.nodes import Node, nearest, shown

C = TypeVar("C")

_PHRASES = {float: "a number", int: "a whole number", bool: "true or false", str: "text", dict: "a mapping"}


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


@cache
def kinds_of(cls: type) -> dict[str, Any]:
    """Annotation by name of the settings of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.init}


def default_of(field: Field[Any]) -> Any:
    """A field's default; None where it has none."""
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


def _value(name: str, node: Node, kind: Any) -> Any:
    value = node.plain()
    options = _options(kind)
    if not any(_fits(value, option) for option in options):
        raise node.error(f"{name} is {shown(node.value)}; it must be {describe(kind)}.")
    for option in options:
        if _is_enum(option) and isinstance(value, str):
            _check_member(name, node, option)
        if is_dataclass(option) and isinstance(option, type) and isinstance(value, dict):
            return make(option, value, node)
    return value


def _check_member(name: str, node: Node, kind: type[enum.Enum]) -> None:
    members = [str(member.value) for member in kind]
    if node.value not in members:
        hint = nearest(node.value, members) or f" It is one of {', '.join(members)}."
        raise node.error(f"{name} is {node.value!r}, which is none of its values.{hint}")


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _fits(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if kind is Any:
        return True
    if kind in (None, type(None)):
        return value is None
    if origin is Literal:
        return value in typing.get_args(kind)
    if origin is list:
        [item] = typing.get_args(kind)
        return isinstance(value, list) and all(any(_fits(v, o) for o in _options(item)) for v in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if (origin or kind) is dict or is_dataclass(kind):
        return isinstance(value, dict)
    if _is_enum(kind):
        return isinstance(value, str)
    return isinstance(value, origin or kind)


def describe(kind: Any) -> str:
    """An annotation in words: "a number or null"."""
    return " or ".join(dict.fromkeys(_described(option) for option in _options(kind)))


def _described(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if kind is type(None):
        return "null"
    if origin is list:
        return f"a list ({describe(typing.get_args(kind)[0])})"
    if origin is Literal:
        return " or ".join(
            "true" if v is True else "false" if v is False else repr(v) for v in typing.get_args(kind)
        )
    if _is_enum(kind):
        return "text"
    return _PHRASES.get(origin or kind, "a mapping" if is_dataclass(kind) else str(kind))


def _options(kind: Any) -> Sequence[Any]:
    """The kinds of a union; of anything else, itself."""
    is_union = typing.get_origin(kind) in (Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _position(pattern: str, message: str) -> int | None:
    match = re.search(pattern, message)
    return match.start() if match else None
