"""Scored groups as JSON, whose numbers are exact, and back.

Columns and extras of rows, which only the record still needs, are kept as the record writes them. A picture in a prompt's content or columns
stands there as {"covey_picture": "<digest>"}; the pictures themselves are kept beside (`covey.vision.stored`).
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from covey.errors import CheckpointError
from covey.runs.record.json_text import json_text
from covey.text.secrets import blanked
from covey.types import Picture

_hints = cache(get_type_hints)
SHOWN = "covey_picture"
"""The key of what stands for a picture in a content or a column."""


def as_json(value: object, shown: dict[str, Picture]) -> object:
    """Return a value as JSON holds it; of columns and extras, what a record may hold. Pictures in it are added to `shown`."""
    if isinstance(value, Picture):
        shown[value.digest] = value
        return value.digest
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in fields(value)}
        own |= {name: _told(own[name], shown) for name in ("content", "columns") if name in own}
        return {
            n: blanked(json.loads(json_text(v))) if n in ("columns", "extras") else as_json(v, shown)
            for n, v in own.items()
        }
    if isinstance(value, Mapping):
        return {name: as_json(part, shown) for name, part in value.items()}
    if isinstance(value, tuple) and any(is_dataclass(part) or isinstance(part, tuple) for part in value):
        return [as_json(part, shown) for part in value]
    return value


def _told(value: object, shown: dict[str, Picture]) -> object:
    """Return a content or columns with what stands for pictures in JSON; the pictures are added to `shown`."""
    if isinstance(value, Picture):
        shown[value.digest] = value
        return {SHOWN: value.digest}
    if isinstance(value, Mapping):
        return {name: _told(part, shown) for name, part in value.items()}
    return [_told(part, shown) for part in value] if isinstance(value, list) else value


def _seen(value: Any, pictures: Mapping[str, Picture]) -> Any:
    """Return what `_told` made JSON of."""
    if isinstance(value, dict):
        known = pictures.get(str(value.get(SHOWN))) if set(value) == {SHOWN} else None
        return {name: _seen(part, pictures) for name, part in value.items()} if known is None else known
    return [_seen(part, pictures) for part in value] if isinstance(value, list) else value


def from_json(kind: Any, value: Any, pictures: Mapping[str, Picture]) -> Any:
    """Return what JSON holds as the kind of an annotation: tuples, mappings and dataclasses of them; anything else as it is. A picture's digest stands for it."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) in (Union, types.UnionType) and len(parts) == 1:
        kind, parts = parts[0], list(get_args(parts[0]))
    if value is None:
        return None
    if kind is Picture:
        return pictures[value]
    if hasattr(kind, "__dataclass_fields__"):
        hints = _hints(kind)
        free = {name: _seen(value[name], pictures) for name in ("content", "columns") if name in value}
        own = {n: from_json(hints[n], part, pictures) for n, part in value.items() if n not in free}
        return kind(**own, **free)
    if get_origin(kind) is tuple:
        is_deep = is_dataclass(parts[0]) or get_origin(parts[0]) is tuple
        return tuple(from_json(parts[0], part, pictures) for part in value) if is_deep else tuple(value)
    if get_origin(kind) is Mapping:
        return {name: from_json(parts[1], part, pictures) for name, part in value.items()}
    return value


def unreadable(what: str, error: Exception) -> CheckpointError:
    """Return the error for groups in a checkpoint that cannot be read."""
    return CheckpointError(
        f"{what} cannot be read ({type(error).__name__}: {error}): another version wrote them, or they were changed. "
        "Resume from another checkpoint, or with the version that wrote it."
    )
