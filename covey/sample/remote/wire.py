"""JSON between a run and `covey serve`, read strictly. docs/engines.md describes it for others.

Numbers come back to the bit: a log-probability is a float32, is written as the shortest text of the double that it is, and is read
as that double again. What is not a number is never written.
"""

from __future__ import annotations

import difflib
import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from covey.errors import ConfigError
from covey.sample.remote.server import DrawRequest
from covey.sample.sampling import Sampling
from covey.text.foreign import excerpt

Read = TypeVar("Read")

type_hints = cache(get_type_hints)

LARGEST = 1 << 63
"""Whole numbers are below it."""

PICTURES = ("image", "images", "pictures", "pixel_values", "multi_modal_data")
"""Fields under which others send pictures."""

SHOWN = 80
"""Characters of a wrong value that an error quotes."""


@dataclass(frozen=True, slots=True)
class DrawBody:
    """Completions that are asked for: a `DrawRequest` without what the server has no use for."""

    prompt: tuple[int, ...]
    settings: Sampling
    seed_key: tuple[int, ...] = (0,)
    first: int = 0
    count: int = 1
    given: tuple[int, ...] = ()
    opening: int = 0
    room: int | None = None
    adapter: str | None = None
    keep_special: bool = False
    """Whether special tokens are part of the text in which stop strings are looked for."""

    @property
    def most(self) -> int:
        """Tokens that may be drawn for each completion."""
        left = self.settings.max_new_tokens - len(self.given) + self.opening
        longest = min(self.settings.longest_turn, left)
        return longest if self.room is None else min(longest, self.room)


@dataclass(frozen=True, slots=True)
class ScoreBody:
    """A text whose log-probabilities are asked for."""

    ids: tuple[int, ...]
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class FilesBody:
    """Files that the server is to read: a folder that it can see, or one that was sent to it."""

    label: str
    """Of weights; of an adapter, its name."""
    folder: str | None = None
    upload: str | None = None
    """Name under which the files were sent."""
    sizes: Mapping[str, int] | None = None
    """Bytes of each file, where the sender can see them: another folder of the same name is not taken for this one."""
    in_flight: bool = False
    """Whether they are for the draws that wait already, too."""


@dataclass(frozen=True, slots=True)
class FolderBody:
    """A folder, of which is asked whether the server sees it, and the bytes of each of its files."""

    folder: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SleepBody:
    """A sleep, and how deep it is to be."""

    keeps_weights: bool


def body_of(request: DrawRequest, keep_special: bool) -> dict[str, Any]:
    """Return a request as JSON."""
    settings = {field.name: getattr(request.settings, field.name) for field in fields(Sampling)}
    return {
        "prompt": request.prompt.ids, "seed_key": request.prompt.seed_key, "settings": settings, "first": request.first,
        "count": request.count, "given": request.given, "opening": request.opening, "room": request.room,
        "adapter": request.adapter, "keep_special": keep_special,
    }  # fmt: skip


def read_json(text: bytes) -> object:
    """Return what a body holds.

    Raises:
        ConfigError: it is no JSON.
    """

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"The body is no JSON: {excerpt(str(error), 200)}. Send one object, in UTF-8."
        ) from None


def read_as(kind: type[Read], value: object, name: str = "the body") -> Read:
    """Return JSON as a value of this type.

    Args:
        kind: a dataclass, a number, a text, a tuple or a mapping of one type, or one of them and None.
        name: where the value stands, for errors.

    Raises:
        ConfigError: it is of another type, misses a field, has one that is not known, or values with which nothing can be drawn.
    """
    origin, inside = get_origin(kind), get_args(kind)
    result: Any = value
    if is_dataclass(kind):
        result = _read_fields(kind, value, name)
    elif origin in (types.UnionType,):
        result = None if value is None else read_as(inside[0], value, name)
    elif origin is tuple and isinstance(value, list):
        # Long lists of numbers are read at once.
        if inside[0] is int and all(type(x) is int and 0 <= x < LARGEST for x in value):
            return tuple(value)  # type: ignore[return-value]
        if inside[0] is float and all(type(x) is float and math.isfinite(x) for x in value):
            return tuple(value)  # type: ignore[return-value]
        result = tuple(read_as(inside[0], x, f"{name}[{index}]") for index, x in enumerate(value))
    elif origin is Mapping and isinstance(value, dict):
        result = {key: read_as(inside[1], x, f"{name}[{key!r}]") for key, x in value.items()}
    elif kind is float and type(value) in (int, float) and abs(value) < math.inf:  # type: ignore[arg-type]
        result = float(value)  # type: ignore[arg-type]
    elif origin is Literal and value in inside:
        result = value
    elif type(value) is not kind or kind is float or (kind is int and not 0 <= value < LARGEST):  # type: ignore[operator]
        words = {
            int: "a whole number from 0 on",
            float: "a finite number",
            bool: "true or false",
            str: "a text",
        }
        expected = words.get(kind, "an object" if origin is Mapping else "a list")
        raise ConfigError(f"{name} is {excerpt(json.dumps(value), SHOWN)}; it must be {expected}.")
    return result


def _read_fields(kind: Any, value: object, name: str) -> object:
    """Return a dataclass from an object of JSON."""
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {excerpt(json.dumps(value), SHOWN)}; it must be an object.")
    hints, of = type_hints(kind), "" if name == "the body" else f"{name}."
    for field in value.keys() - hints.keys():
        if field in PICTURES:
            raise ConfigError(
                f"{of}{field}: this server draws from text alone. Runs whose prompts show pictures sample in their own process, with "
                "engine='native'."
            )
        close = difflib.get_close_matches(field, hints, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(hints)}."
        raise ConfigError(f"{of}{excerpt(field, SHOWN)} is no field that is known here. {hint}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise ConfigError(f"{of}{field.name} is missing.")
    return kind(**{field: read_as(hints[field], x, of + field) for field, x in value.items()})
