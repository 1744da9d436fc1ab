"""Gemma 4 and FunctionGemma: `call:name{key:value}` between markers, text between quotes that are tokens of their own."""

from __future__ import annotations

import json
import re
from typing import Any

from covey.tools.formats.parsed import Format, Schemas, WrittenCall, marked_calls, without_thinking

MARKS = (("<|tool_call>", "<tool_call|>"), ("<start_function_call>", "<end_function_call>"))
QUOTES = ('<|"|>', "<escape>")
CALL = re.compile(r"\s*call:\s*([\w.\-]+)\s*(?=\{)")
KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:")
BARE = re.compile(r"[^,\]}]*")
SPACE, COMMAS = re.compile(r"\s*"), re.compile(r"[\s,]*")
DEEPEST = 50


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return the text around the calls, and the calls."""
    for opens, closes in MARKS:
        if opens in text:
            return marked_calls(text, opens, closes, read_call)
    return text, []


def read_call(body: str) -> WrittenCall:
    """Return the call that the words between two marks make."""
    found = CALL.match(body)
    if found is None:
        return WrittenCall(body.strip(), fault="a call is call:name{key:value}")
    try:
        arguments, end = value_at(body, found.end(), 0)
    except ValueError as error:
        return WrittenCall(body.strip(), found[1], fault=str(error))
    if body[end:].strip():
        return WrittenCall(
            body.strip(), found[1], fault=f"{body[end:].strip()[:60]!r} stands behind the call"
        )
    return WrittenCall(body.strip(), found[1], arguments)


def value_at(text: str, place: int, depth: int) -> tuple[Any, int]:
    """Return the value that stands at a place of a text, and where it ends; raise ValueError where there is none."""
    if depth > DEEPEST:
        raise ValueError("it is nested too deeply")
    place = behind(SPACE, text, place)
    for quote in QUOTES:
        if text.startswith(quote, place):
            end = text.find(quote, place + len(quote))
            if end < 0:
                raise ValueError(f"a text is not closed by {quote}")
            return text[place + len(quote) : end], end + len(quote)
    if text.startswith(("{", "["), place):
        return several_at(text, place, depth)
    bare = BARE.match(text, place)
    if bare is None or not (word := bare[0].strip()):
        raise ValueError(f"there is no value at {text[place : place + 40]!r}")
    try:
        return json.loads(word), bare.end()
    except ValueError:
        return word, bare.end()


def behind(what: re.Pattern[str], text: str, place: int) -> int:
    """Return the first place that no sign of `what` stands at."""
    found = what.match(text, place)
    return found.end() if found else place


def several_at(text: str, place: int, depth: int) -> tuple[Any, int]:
    """Return the object or list that opens at a place of a text, and where it ends."""
    is_object = text[place] == "{"
    closes = "}" if is_object else "]"
    items: list[Any] = []
    named: dict[str, Any] = {}
    place += 1
    while True:
        place = behind(COMMAS, text, place)
        if text.startswith(closes, place):
            return (named if is_object else items), place + 1
        if place >= len(text):
            raise ValueError(f"it is not closed by {closes}")
        key = None
        if is_object:
            key = KEY.match(text, place)
            if key is None:
                raise ValueError(f"there is no key at {text[place : place + 40]!r}")
            place = key.end()
        value, place = value_at(text, place, depth + 1)
        if key is None:
            items.append(value)
        else:
            named[key[1].strip('"')] = value


def thoughts(text: str, prefix: str) -> tuple[str, str | None]:
    """Cut what stands between the markers of the channel `thought`."""
    return without_thinking(text, prefix, (("<|channel>thought", "<channel|>"),))


GEMMA = Format("gemma", calls_in, thoughts)
