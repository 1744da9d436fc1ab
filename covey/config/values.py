"""Checks of one value; each names the setting, what came, and what is expected.

Raises:
    ConfigError: the value is wrong.
"""

from __future__ import annotations

import difflib
from typing import Any

from covey.config.choices import SAID_ELSEWHERE
from covey.errors import ConfigError


def not_negative(name: str, value: float | None, what: str) -> None:
    if value is not None and value < 0:
        raise ConfigError(f"{name} is {value}; it is {what} and must not be negative.")


def at_least(name: str, value: Any, least: int, reason: str = "") -> None:
    if not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name} is {value!r}; it must be a whole number, at least {least}{': ' if reason else ''}{reason}."
        )


def within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}; it must lie between {low:g} and {high:g}.")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.{_hint(name, value, allowed)}"
        )


def _hint(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """What was meant: something that another setting says, or the name that comes close, in whatever case."""
    said = str(value).lower().replace("-", "_")
    elsewhere = SAID_ELSEWHERE.get(said) if name == "loss_type" else None
    if elsewhere is not None:
        return f" {value} is no loss of its own here: set {elsewhere}."
    close = difflib.get_close_matches(said, allowed, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
