"""Mistral: `[TOOL_CALLS]` and a JSON list, or `[TOOL_CALLS]name[ARGS]{...}` once per call."""

from __future__ import annotations

import re

from covey.tools.formats.parsed import (
    THINK,
    Format,
    Schemas,
    WrittenCall,
    json_call,
    read_json,
    without_thinking,
)

OPEN, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
NEXT = re.compile(r'\{\s*"name"\s*:')


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return the text before the calls, and the calls."""
    content, *bodies = text.split(OPEN)
    calls: list[WrittenCall] = []
    for body in bodies:
        calls += listed_calls(body) if ARGS not in body else [named_call(body)]
    return content, calls


def named_call(body: str) -> WrittenCall:
    """Return the call that a name and its arguments make."""
    name, _, given = body.partition(ARGS)
    name = name.partition(ID)[0].strip()
    value, end, fault = read_json(given)
    if fault is None and given[end:].strip():
        fault = "something stands behind the JSON"
    if fault is not None:
        return WrittenCall(body.strip(), name, fault=fault)
    return json_call(body.strip(), {"name": name, "arguments": value})


def listed_calls(body: str) -> list[WrittenCall]:
    """Return the calls of a JSON list; one that cannot be read does not take those behind it."""
    rest = body.strip().removeprefix("[").lstrip()
    calls = []
    while rest and not rest.startswith("]"):
        value, end, fault = read_json(rest)
        if fault is not None:
            end = next((found.start() for found in NEXT.finditer(rest, 1)), len(rest))
            calls.append(WrittenCall(rest[:end].strip(", \n"), fault=fault))
        else:
            calls.append(json_call(rest[:end], value))
        rest = rest[end:].lstrip(", \n")
    return calls


def thoughts(text: str, prefix: str) -> tuple[str, str | None]:
    """Cut what stands between `[THINK]` and `[/THINK]`, or `<think>` and `</think>`."""
    return without_thinking(text, prefix, (("[THINK]", "[/THINK]"), THINK))


MISTRAL = Format("mistral", calls_in, thoughts)
