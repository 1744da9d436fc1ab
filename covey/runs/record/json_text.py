"""Values → JSON, whatever they are: numbers that are not finite, arrays, paths, what has no JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from covey.types import Picture

Json = dict[str, Any]
"""An object as JSON has it."""

PLACE = re.compile(r" at 0x[0-9A-Fa-f]+")
"""Where an object stands in memory, as Python writes it: other digits in every run."""


def encode(record: object) -> bytes:
    """Return one line of JSON in ASCII: a torn line never tears a character, and lone surrogates pass."""
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False, default=plain)
    # Numbers that are not finite, keys that are no texts: rare, so only then is the record walked.
    except (TypeError, ValueError):
        text = json.dumps(finite(record), separators=(",", ":"), allow_nan=False, default=plain)
    return text.encode("ascii") + b"\n"


def json_text(value: object) -> str:
    """Return JSON on one line, in ASCII; of what no JSON can say (references in circles), what it is."""
    try:
        return encode(value).decode("ascii").rstrip("\n")
    except (TypeError, ValueError, RecursionError):
        return json.dumps(f"<{type(value).__name__} that refers to itself>")


def plain(value: object) -> object:
    """Return something that JSON can hold for what it cannot: numpy numbers and arrays, paths, sets, enums; else the text of it.

    Of bytes only the number, of a picture its mark, and of an object not its place in memory: equal runs leave equal files.
    """
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        return finite(to_list())
    if isinstance(value, set | frozenset | tuple):
        return sorted(value, key=str) if not isinstance(value, tuple) else list(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Picture):  # rare: prompts and their columns come with marks
        from covey.vision.marks import mark

        return mark(value)
    return PLACE.sub("", str(getattr(value, "value", value)))


def finite(value: object) -> object:
    """Return the value with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value
