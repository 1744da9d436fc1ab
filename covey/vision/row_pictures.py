"""The pictures of a dataset's row: columns `images` or `image`, and blocks in the messages → references and pixels, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from covey.errors import DatasetError
from covey.types import Message, Picture, PromptContent, is_picture, parts_of
from covey.vision.blocks import (
    BARE,
    COLUMNS,
    PAYLOADS,
    is_image,
    is_stored,
    payload_of,
    payloads_in,
    with_blocks,
)
from covey.vision.pictures import NO_LIMITS, ColumnPath, PictureLimits, picture_of

P = TypeVar("P")

WRITERS = ("assistant", "tool", "function", "ipython")
"""Roles whose messages hold no pictures: what a policy or a tool says is text."""


@dataclass(frozen=True)
class Given:
    """A picture as a row gives it, and where it stands there."""

    source: Any
    column: str
    index: int
    """Its place among the pictures of the column."""


def given_pictures(row: Mapping[str, Any]) -> tuple[Given, ...]:
    """Return the pictures of a row's columns; none where they are empty or None."""
    for column in COLUMNS:
        value = row.get(column)
        if value is None:
            continue
        several = value if isinstance(value, list | tuple) else [value]
        if several:
            return tuple(Given(source, column, index) for index, source in enumerate(several))
    return ()


def pictures_of(
    row: Mapping[str, Any], content: PromptContent, number: int, limits: PictureLimits, read: Callable[..., P]
) -> tuple[PromptContent, list[tuple[Given, P]]]:
    """Return the prompt of a row with bare blocks where pictures stand (a text says it itself), and each: as given, and as it is read.

    Args:
        read: `read_picture`, for a reference and pixels; or `picture_of`, for a reference from the head of the file.

    Raises:
        DatasetError: a picture cannot be used, or there are other numbers of pictures than of blocks.
    """
    given: Sequence[Given] = given_pictures(row)
    if not isinstance(content, str):
        content, given = with_pictures(content, given, number)
    return content, [(g, read(g.source, number, g.column, g.index, limits)) for g in given]


def with_pictures(
    messages: list[Message], pictures: Sequence[Given], number: int
) -> tuple[PromptContent, tuple[Given, ...]]:
    """Return a chat with a block for each picture, as templates read them, and the pictures in the order of the blocks.

    Args:
        pictures: of the row's columns.
        number: of the row, for errors.

    Raises:
        DatasetError: other numbers of pictures than of blocks, or a picture in what the policy or a tool says.
    """
    faults = [m["role"] for m in messages if m["role"] in WRITERS and any(map(is_picture, parts_of(m)))]
    if faults:
        raise DatasetError(
            f"Row {number}: a message of the role {faults[0]!r} holds a picture. Pictures stand in messages of users and systems; "
            "pictures in answers and results of tools are not supported yet."
        )
    if pictures and all(held is not None for held in payloads_in(messages)):
        messages = _before_first_text(messages, len(pictures))
    if (bare := sum(held is None for held in payloads_in(messages))) != len(pictures):
        columns = " and ".join(dict.fromkeys(repr(p.column) for p in pictures)) or "'images'"
        roles = ", ".join(dict.fromkeys(repr(m["role"]) for m in messages))
        raise DatasetError(
            f"Row {number}: the messages have {bare} blocks for pictures, and {columns} has "
            f"{len(pictures)} pictures. Write one {{'type': 'image'}} for each, or none and a user's content as text: they come before it. "
            f"Its messages are of {roles}."
        )
    left, order = iter(pictures), list[Given]()

    def bared(part: Message) -> Message:
        own = payload_of(part)
        order.append(next(left) if own is None else Given(own, "prompt", len(order)))
        return dict(BARE)

    return with_blocks(messages, bared), tuple(order)


def _before_first_text(messages: list[Message], count: int) -> list[Message]:
    """Return the messages with so many blocks before the first text of a user; without one, as they are."""
    first = next(
        (i for i, m in enumerate(messages) if m["role"] == "user" and isinstance(m.get("content"), str)), None
    )
    return [
        {**m, "content": [*[dict(BARE)] * count, {"type": "text", "text": m["content"]}]} if i == first else m
        for i, m in enumerate(messages)
    ]


def references(
    row: Mapping[str, Any], number: int, known: Mapping[tuple[str, int], Picture] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a row with a `Picture` for each picture of its columns, and for each that a block of its prompt holds.

    Args:
        known: pictures that the policy is shown, by column and place there. Others are read where they are images, or an Image
            column of a dataset holds them; everything else stays: rewards get it as it is.
    """

    def reference(value: object, column: str, index: int) -> object:
        if is_image(value):
            return picture_of(value, number, column, index, NO_LIMITS)
        if not is_stored(value):
            return value
        is_held = value["bytes"] is not None or isinstance(value["path"], ColumnPath)
        return picture_of(value, number, column, index) if is_held else value

    def block(part: Message) -> Message:
        held = {key: part[key] for key in PAYLOADS if part.get(key) is not None}
        return {**part, **{key: reference(value, "prompt", 0) for key, value in held.items()}}

    result = dict(row)
    for column in COLUMNS:
        value = row.get(column)
        several = value if isinstance(value, list | tuple) else [value]
        read = [known.get((column, i)) or reference(one, column, i) for i, one in enumerate(several)]
        if any(isinstance(one, Picture) for one in read):
            result[column] = read if several is value else read[0]
    if not known:
        result["prompt"] = with_blocks(row["prompt"], block)
    return result
