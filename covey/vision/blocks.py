"""Places of pictures in a chat: blocks {"type": "image"} in the contents of messages, filled in order; TRL's rule.

blocks without a picture    take the pictures of the row's columns, one each, in order
none of these               all pictures of the columns come before the first text of a user
blocks with one             keep it: under `image`, `url`, `path`, `base64`, `bytes`, or `image_url` as OpenAI writes it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from covey.types import Message, PromptContent, is_picture, parts_of

PAYLOADS = ("image", "image_url", "url", "path", "base64", "bytes")
"""Keys under which a block holds its picture."""
BARE: Mapping[str, Any] = {"type": "image"}
"""What a chat template reads of a picture."""
COLUMNS = ("images", "image")
"""Columns with the pictures of a row; of two that a row fills the first is taken."""


def is_image(value: object) -> bool:
    """Return whether a value is a PIL image; Pillow need not be there."""
    return type(value).__module__.partition(".")[0] == "PIL"


def is_stored(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is a picture as an Image column stores it: its encoded bytes, or the path of its file."""
    return isinstance(value, Mapping) and set(value) == {"bytes", "path"}


def payload_of(part: Mapping[str, Any]) -> Any:
    """Return the picture that a block holds; None where it takes one of the row's columns."""
    for key in PAYLOADS:
        value = part.get(key)
        if value is not None:
            if key == "base64" and isinstance(value, str) and not value.startswith("data:"):
                return f"data:image;base64,{value}"
            return value.get("url") if key == "image_url" and isinstance(value, Mapping) else value
    return None


def without_payloads(content: PromptContent) -> PromptContent:
    """Return a prompt with bare blocks where pictures stand, whatever they held."""
    return with_blocks(content, lambda _: dict(BARE))


def with_blocks(content: PromptContent, block: Callable[[Message], Message]) -> PromptContent:
    """Return a prompt with other parts for those that stand for pictures, each made from the one that stood there."""
    if isinstance(content, str):
        return content
    return [
        {**m, "content": [block(part) if is_picture(part) else part for part in parts_of(m)]}
        if any(map(is_picture, parts_of(m)))
        else m
        for m in content
    ]


def payloads_in(content: PromptContent) -> list[Any]:
    """Return what the blocks of a prompt hold, in order; None for one that holds nothing. A prompt that is text has no blocks."""
    messages = () if isinstance(content, str) else content
    return [payload_of(part) for message in messages for part in parts_of(message) if is_picture(part)]


def filled(content: PromptContent, pictures: Iterable[object]) -> PromptContent:
    """Return a prompt whose bare blocks hold pictures under `image`, one each, in order."""
    left = iter(pictures)
    return with_blocks(content, lambda part: {**part, "image": next(left)})
