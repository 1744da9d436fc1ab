"""Prompts as files and people get them: in the place of a picture stands a mark, and never a pixel.

{"type": "image", "digest": "<64 hex digits>", "size": [448, 336]}      in a record
[picture 448×336 ab12]                                                  on a terminal
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from covey.types import Message, Picture, Prompt, PromptContent
from covey.vision.blocks import BARE, COLUMNS, PAYLOADS, with_blocks

DIGITS = 4
"""Digits of a digest that people read; `Run.picture` takes them."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(value: object) -> bool:
    """Return whether a value of a file is a digest, and so safe as the name of a file."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def mark(picture: Picture) -> Message:
    """Return what stands for a picture in a record."""
    return {**BARE, "digest": picture.digest, "size": list(picture.size)}


def marked(prompt: Prompt) -> tuple[PromptContent, Mapping[str, object]]:
    """Return content and columns of a prompt with a mark for each picture.

    Marks of what holds pixels and is no `Picture` have no digest: it is for rewards alone (`use_images=False`). A text prompt stays
    as it is: it says itself where its pictures stand.
    """

    def block(part: Message) -> Message:
        held = next((part[key] for key in PAYLOADS if isinstance(part.get(key), Picture)), None)
        kept = {name: value for name, value in part.items() if name not in PAYLOADS}
        return {**kept, **(BARE if held is None else mark(held))}

    columns = {n: _without_pixels(v) if n in COLUMNS else v for n, v in prompt.columns.items()}
    return with_blocks(prompt.content, block), columns


def _without_pixels(value: object) -> object:
    """Return a value of a column of pictures with a mark in place of everything that holds pixels; names and paths stay."""
    if isinstance(value, Picture):
        return mark(value)
    if isinstance(value, Mapping):
        return {name: _without_pixels(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_pixels(inner) for inner in value]
    if isinstance(value, str):
        return dict(BARE) if value[:5].lower() == "data:" else value
    return value if value is None or isinstance(value, int | float) else dict(BARE)


def pictures_in(prompt: Prompt) -> tuple[Picture, ...]:
    """Return what the policy was shown; where it is shown nothing, what rewards are shown, each once."""
    if prompt.pictures:
        return prompt.pictures
    found: dict[str, Picture] = {}
    left: list[object] = [prompt.content, *(prompt.columns.get(name) for name in COLUMNS)]
    for value in left:  # which grows meanwhile
        if isinstance(value, Picture):
            found.setdefault(value.digest, value)
        elif isinstance(value, Mapping | list | tuple):
            left += value.values() if isinstance(value, Mapping) else value
    return tuple(found.values())


def told(prompt: Prompt) -> PromptContent:
    """Return a prompt for people: pictures in words, where they stand, or before a prompt that is text."""
    if isinstance(prompt.content, str):
        return "".join(f"{word(mark(picture))} " for picture in prompt.pictures) + prompt.content
    return worded(marked(prompt)[0])


def worded(content: PromptContent) -> PromptContent:
    """Return messages in which marks are words."""
    return with_blocks(content, lambda part: {"type": "text", "text": f" {word(part)} "})


def word(part: Mapping[str, object]) -> str:
    """Return a mark in words: `[picture 448×336 ab12]`, as far as it says."""
    size, digest = part.get("size"), part.get("digest")
    words = ["picture"]
    if isinstance(size, list | tuple) and len(size) == 2 and all(type(side) is int for side in size):
        words.append(f"{size[0]}×{size[1]}")
    return f"[{' '.join([*words, *([str(digest)[:DIGITS]] if is_digest(digest) else [])])}]"
