"""Llama 3.x: bare JSON `{"name": ..., "parameters": ...}`, maybe behind `<|python_tag|>`; several with semicolons between."""

from __future__ import annotations

import re

from covey.tools.formats.parsed import Format, Schemas, WrittenCall, json_call, read_json

TAG = "<|python_tag|>"
LOOKS_LIKE_A_CALL = re.compile(r'\{\s*"(name|type|function)"\s*:')


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return the text before the calls, and the calls. JSON that names no tool and no parameters is an answer."""
    content, tag, body = text.partition(TAG)
    if not tag and not text.lstrip().startswith("{"):
        return text, []
    content, rest = (content, body.strip()) if tag else ("", text.strip())
    calls: list[WrittenCall] = []
    while rest:
        value, end, fault = read_json(rest)
        if fault is None and not tag and not is_call(value, schemas):
            return text, []
        if fault is not None and not tag and not LOOKS_LIKE_A_CALL.match(rest):
            return (text, []) if not calls else (content + rest, calls)
        if fault is not None:
            end = next((m.start() for m in LOOKS_LIKE_A_CALL.finditer(rest, 1)), len(rest))
            calls.append(WrittenCall(rest[:end].strip("; \n"), fault=fault))
        else:
            calls.append(json_call(rest[:end], value, ("parameters", "arguments")))
        rest = rest[end:].lstrip("; \n")
    return content, calls


def is_call(value: object, schemas: Schemas) -> bool:
    """Return whether a JSON value means a call: it names a tool, or has a name and arguments."""
    if not isinstance(value, dict) or "name" not in value:
        return False
    return value["name"] in list(schemas) or "parameters" in value or "arguments" in value


LLAMA = Format("llama", calls_in)
