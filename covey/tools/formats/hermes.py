"""Hermes, Qwen2.5, Qwen3, SmolLM3: JSON between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from covey.tools.formats.parsed import Format, Schemas, WrittenCall, json_call, read_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return the text around the calls, and the calls."""
    content, calls = "", []
    while OPEN in text:
        before, _, text = text.partition(OPEN)
        content += before
        call, text = first_call(text)
        calls.append(call)
    return content + text, calls


def first_call(text: str) -> tuple[WrittenCall, str]:
    """Return the call that a text begins with, and the text behind it. A closing mark inside a JSON string closes nothing."""
    value, end, fault = read_json(text)
    if fault is None and text[end:].lstrip().startswith(CLOSE):
        return json_call(text[:end].strip(), value), text[end:].partition(CLOSE)[2]
    body, mark, rest = text.partition(CLOSE)
    if not mark or OPEN in body:  # the next one opens before this one closes
        body, mark, rest = text.partition(OPEN)
        rest = mark + rest
        return WrittenCall(body.strip(), fault=fault or f"it is not closed by {CLOSE}"), rest
    return WrittenCall(body.strip(), fault=fault or f"something stands between the JSON and {CLOSE}"), rest


HERMES = Format("hermes", calls_in)
