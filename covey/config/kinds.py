"""Which kinds of values a setting takes, by the annotation of its field."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union

_PHRASES = {float: "a number", int: "a whole number", bool: "true or false", str: "text", dict: "a mapping"}


@cache
def kinds_of(cls: type) -> dict[str, Any]:
    """Annotation by name of the settings of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.init}


def options(kind: Any) -> Sequence[Any]:
    """The kinds of a union; of anything else, itself."""
    is_union = typing.get_origin(kind) in (Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def fits_any(value: Any, kind: Any) -> bool:
    """Whether a value is of one of the kinds of an annotation."""
    return any(fits(value, option) for option in options(kind))


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind that is no union. A whole number is a number; true and false are neither."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return True
    if kind in (None, type(None)):
        return value is None
    if origin is Literal:
        return value in typing.get_args(kind)
    if origin is list:
        [item] = typing.get_args(kind)
        return isinstance(value, list) and all(fits_any(v, item) for v in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if (origin or kind) is dict or is_dataclass(kind):
        return isinstance(value, dict)
    if is_enum(kind):
        return isinstance(value, str)
    return isinstance(value, origin or kind)


def describe(kind: Any, nothing: str = "null") -> str:
    """An annotation in words: "a number or null"."""
    return " or ".join(dict.fromkeys(_described(option, nothing) for option in options(kind)))


def _described(kind: Any, nothing: str) -> str:
    origin = typing.get_origin(kind)
    if kind is type(None):
        return nothing
    if origin is list:
        return f"a list ({describe(typing.get_args(kind)[0], nothing)})"
    if origin is Literal:
        return " or ".join(
            "true" if v is True else "false" if v is False else repr(v) for v in typing.get_args(kind)
        )
    if is_enum(kind):
        return "text"
    return _PHRASES.get(origin or kind, "a mapping" if is_dataclass(kind) else str(kind))
