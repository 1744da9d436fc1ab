"""Fields of a table of settings, and a constructor that knows their names."""

from __future__ import annotations

import difflib
import functools
from dataclasses import field, fields
from typing import Any, TypeVar

from covey.errors import ConfigError

C = TypeVar("C", bound=type)


class UnknownSettingError(ConfigError, TypeError):
    """A setting that does not exist."""


def checks_names(cls: C) -> C:
    """Make the constructor name what it does not know, and the settings that come close."""
    generated: Any = cls.__init__  # type: ignore[misc]

    @functools.wraps(generated)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        known = [f.name for f in fields(cls)]
        for name in kwargs:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3)
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                raise UnknownSettingError(f"{cls.__name__} has no setting {name!r}.{hint}")
        generated(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[misc]
    return cls


def help_text(default: Any, text: str) -> Any:
    """A field with its default and what it is for."""
    return field(default=default, metadata={"help": text})


def defaults(cls: type) -> dict[str, Any]:
    """Default by name."""
    return {f.name: f.default for f in fields(cls)}
