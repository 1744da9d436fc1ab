"""Validation of settings from their annotations: names, kinds of values, choices and ranges.

Raises:
    ConfigError: a setting is unknown, of another kind than its annotation, or out of range.
"""

from __future__ import annotations

import copy
import difflib
import enum
import functools
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import InitVar, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, Union

import numpy as np
from transformers import TrainingArguments

from covey.config.choices import OTHER_SETTINGS
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig
    from covey.config.model import ModelConfig

C = TypeVar("C", bound=type)
T = TypeVar("T")

CHECKED: set[object] = {int, float, bool, type(None), list[float]}
"""Kinds that `check_kinds` checks, beside Literals. Values of other kinds have checks of their own."""

MAY_BE_INFINITE = ("epsilon_high", "covariance_high", "max_grad_norm")
"""Upper bounds of which infinity is the absence."""

CHECKED_LATER = ("num_train_epochs",)
"""Numbers that need not be finite where another setting stands for them."""

_PHRASES: dict[object, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    dict: "a mapping",
    list: "a list",
}


class UnknownSettingError(ConfigError, TypeError):
    """A setting that does not exist."""


# --- a table of settings


def checks_names(cls: C) -> C:
    """Return the dataclass with a constructor that refuses unknown names and suggests those that come close."""
    generated = cls.__init__  # type: ignore[misc]

    @functools.wraps(generated)
    def __init__(self: object, *args: object, **kwargs: object) -> None:
        known = kinds_of(cls)
        current = [f.name for f in fields(cls) if not str(f.metadata.get("help", "")).startswith("Retired")]
        for name in kwargs:
            if name not in known:
                close = difflib.get_close_matches(name, current, n=3)
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                raise UnknownSettingError(f"{cls.__name__} has no setting {name!r}.{hint}")
        generated(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[misc]
    return cls


def parses(cls: C) -> C:
    """Return the dataclass with fields of its own that HfArgumentParser reads: a switch needs no value, a list takes several.

    The parser hands the metadata of a field on to argparse.
    """
    table = cls.__dataclass_fields__  # type: ignore[attr-defined]
    for name, kind in kinds_of(cls).items():
        more: dict[str, object] = {}
        if set(options(kind)) == {bool, type(None)} and table[name].default is None:
            more = {"nargs": "?", "const": True}
        elif {str, list[str]} <= set(options(kind)):
            more = {"nargs": "+"}
        if more:  # a field of TrainingArguments is shared with it
            table[name] = copy.copy(table[name])
            table[name].metadata = types.MappingProxyType({**table[name].metadata, **more})
    return cls


def help_text(default: T, text: str) -> T:
    """Return a dataclass field with a default and a description, which command lines show."""
    return field(default=default, metadata={"help": text})


def defaults(cls: type) -> dict[str, object]:
    """Return the default of each setting by name."""
    return {f.name: f.default for f in fields(cls)}


# --- annotations as kinds of values


@functools.cache
def kinds_of(cls: type) -> dict[str, object]:
    """Return the annotation of each setting of a dataclass by name, also of those that only its constructor takes."""
    hints = typing.get_type_hints(cls)
    only_given = {n: h.type for n, h in hints.items() if isinstance(h, InitVar)}
    return {f.name: hints[f.name] for f in fields(cls) if f.init} | only_given


def options(kind: object) -> Sequence[object]:
    """Return the kinds of a union; of anything else, itself."""
    is_union = typing.get_origin(kind) in (Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def choices(kind: object) -> tuple[str, ...]:
    """Return the words that a Literal among the options allows; empty where there is none."""
    literals = [option for option in options(kind) if typing.get_origin(option) is Literal]
    return tuple(v for literal in literals for v in typing.get_args(literal) if isinstance(v, str))


def is_enum(kind: object) -> TypeGuard[type[enum.Enum]]:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def fits(value: object, kind: object) -> bool:
    """Return whether a value is of the kind of an annotation. A whole number is a number; true and false are neither."""
    if len(options(kind)) > 1:
        return any(fits(value, option) for option in options(kind))
    if kind is Any:
        return True
    origin = typing.get_origin(kind)
    if origin is Literal:  # 1 equals True and is no switch
        return any(value == allowed and isinstance(value, type(allowed)) for allowed in typing.get_args(kind))
    if origin is list:
        [item] = typing.get_args(kind)
        return isinstance(value, list) and all(fits(v, item) for v in value)
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if is_dataclass(kind):
        return isinstance(value, dict)
    if is_enum(kind):
        return isinstance(value, str)
    plain = type(None) if kind is None else origin or kind
    return isinstance(plain, type) and isinstance(value, plain)


def describe(kind: object, nothing: str = "null") -> str:
    """Return an annotation in words: "a number or null"."""
    if len(options(kind)) > 1:
        return " or ".join(dict.fromkeys(describe(option, nothing) for option in options(kind)))
    if kind is type(None):
        return nothing
    if typing.get_origin(kind) is list:
        return f"a list ({describe(typing.get_args(kind)[0], nothing)})"
    if typing.get_origin(kind) is Literal:
        words = [repr(v) if isinstance(v, str) else str(v).lower() for v in typing.get_args(kind)]
        return " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
    if is_enum(kind):
        return "text"
    return _PHRASES.get(typing.get_origin(kind) or kind, "a mapping" if is_dataclass(kind) else str(kind))


def refusal(name: str, value: object, kind: object, nothing: str = "null", shown: str | None = None) -> str:
    """Return the message about a value that does not fit: what came, what is expected, and what was probably meant.

    Where the setting was written, `nothing` is the word for None, and the value was `shown` so; by default its repr.
    """
    words = choices(kind)
    expected = f"one of {', '.join(map(repr, words))}" if words else describe(kind, nothing)
    message = f"{name} is {repr(value) if shown is None else shown}; it must be {expected}."
    if words:
        spelled = str(value).lower().replace("-", "_")
        if name == "loss_type" and spelled in OTHER_SETTINGS:
            return f"{message} {value} is no loss of its own here: set {OTHER_SETTINGS[spelled]}."
        close = difflib.get_close_matches(spelled, words, n=1)
        return f"{message} Did you mean {close[0]!r}?" if close else message
    if isinstance(value, str) and {int, float} & set(options(kind)):
        try:
            float(value)
        except ValueError:
            return message
        return f"{message} Leave out the quotes: {value.strip()}."
    return message


# --- checks of a table, and of one value


def check_values(config: GRPOConfig, cls: type) -> None:
    """Raise where a value is of another kind than its field, none of its words, or not finite."""
    check_kinds(config, cls)
    check_choices(config, cls)
    check_finite(config)


def check_choices(config: GRPOConfig | ModelConfig, cls: type) -> None:
    """Raise where a setting is none of the words that its Literal allows."""
    for name, kind in kinds_of(cls).items():
        value = getattr(config, name)
        if choices(kind) and not fits(value, kind):
            raise ConfigError(refusal(name, value, kind, "None"))
        for words in filter(is_enum, options(kind)):
            members = [str(member.value) for member in words]
            if isinstance(value, str) and getattr(value, "value", value) not in members:
                close = difflib.get_close_matches(value.lower(), members, n=3)
                hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
                raise ConfigError(
                    f"{name} is {value!r}; it must be one of {', '.join(map(repr, members))}.{hint}"
                )


def check_kinds(config: GRPOConfig, cls: type) -> None:
    """Raise where a number is text, a whole number is not whole, or a switch is neither true nor false.

    None passes for switches of TrainingArguments: there it is another way to say no.

    Args:
        cls: GRPOConfig itself: fields that a class derived from it adds are not checked.
    """
    inherited = {f.name for f in fields(TrainingArguments)}
    for name, kind in kinds_of(cls).items():
        value = getattr(config, name)
        if isinstance(value, np.generic):  # the same number, in the form that other checks and JSON know
            value = value.item()
            setattr(config, name, value)
        is_no = value is None and name in inherited and not {int, float} & set(options(kind))
        if not set(options(kind)) <= CHECKED or is_no:
            continue
        if not fits(list(value) if isinstance(value, tuple) else value, kind):
            raise ConfigError(refusal(name, value, kind, "None"))


def check_finite(config: GRPOConfig) -> None:
    """Raise where a number is not finite, but for `MAY_BE_INFINITE`."""
    for name in [f.name for f in fields(config)]:
        value = getattr(config, name)
        for number in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(number, float) or math.isfinite(number) or name in CHECKED_LATER:
                continue
            if not (number == math.inf and name in MAY_BE_INFINITE):
                raise ConfigError(f"{name} is {value}; it must be finite.")


def not_negative(name: str, value: float | None, what: str) -> None:
    if value is not None and value < 0:
        raise ConfigError(f"{name} is {value}; it is {what} and must not be negative.")


def at_least(name: str, value: object, least: int, reason: str = "") -> None:
    if not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name} is {value!r}; it must be a whole number, at least {least}{': ' if reason else ''}{reason}."
        )


def within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}; it must lie between {low:g} and {high:g}.")
