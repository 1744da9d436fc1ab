"""Results of tools → the text that the policy reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import ToolError
from covey.vision.blocks import is_image

IMAGE_KINDS = ("image", "image_url", "input_image", "video", "audio", "input_audio")
CHARACTERS_PER_TOKEN = 64
"""More than a token ever holds on average: of an endless result, only so much per token is encoded."""


def result_text(value: object, name: str) -> str:
    """Return the text of what a tool returned: text as it is, None empty, lists and dictionaries as JSON.

    Raises:
        ToolError: an image, which a policy that reads text only cannot take.
    """
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    elif isinstance(value, list) and value and all(isinstance(p, Mapping) and "type" in p for p in value):
        text = parts_text(value, name)
    elif isinstance(value, dict | list):
        text = as_json(value)
    elif is_image(value):
        raise image_refused(name)
    else:
        text = str(value)
    return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate is no text to a tokenizer


def parts_text(parts: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the text of content in parts, as chats have it; a list of other objects with a type is JSON."""
    if any(part["type"] in IMAGE_KINDS for part in parts):
        raise image_refused(name)
    if all(part["type"] == "text" and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    return as_json(parts)


def image_refused(name: str) -> ToolError:
    return ToolError(f"{name} returned an image, and this policy reads text only")


def as_json(value: object) -> str:
    """Return a value as JSON; what JSON does not know as text, and what refers to itself as Python writes it."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return str(value)


def error_text(message: str) -> str:
    """Return an error as the policy reads it, in TRL's words."""
    return str({"error": message.encode("utf-8", "replace").decode("utf-8")})


def message_of(error: BaseException) -> str:
    """Return what an exception says, without where; its kind where it says nothing."""
    if isinstance(error, SystemExit):
        return f"the tool exited: {error.code}"
    try:
        return str(error) or type(error).__name__
    except Exception:  # its own text may fail
        return type(error).__name__


@dataclass(frozen=True)
class Shortener:
    """Cuts texts to a number of tokens."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]

    def cut(self, text: str, limit: int | None) -> str:
        """Return the start and the end of a text, `limit` tokens together, and a note of what is missing between."""
        if limit is None:
            return text
        most = limit * CHARACTERS_PER_TOKEN
        ends = [text] if len(text) <= 2 * most else [text[:most], text[-most:]]
        ids = [self.encode(end) for end in ends]
        if len(ids) == 1 and len(ids[0]) <= limit:
            return text
        tail = limit // 2
        start = self.decode(ids[0][: limit - tail])
        end = self.decode(ids[-1][len(ids[-1]) - tail :]) if tail else ""
        missing = len(text) - len(start) - len(end)
        return f"{start}\n[... {missing} characters left out ...]\n{end}"
