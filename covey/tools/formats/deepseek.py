"""DeepSeek V3 and R1 (name, then fenced JSON) and V3.1 (name, then bare JSON), between markers of their own."""

from __future__ import annotations

import re

from covey.tools.formats.parsed import Format, Schemas, WrittenCall, json_call, marked_calls, read_json

OPEN, CLOSE, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
AROUND = re.compile("<｜tool▁calls▁begin｜>|<｜tool▁calls▁end｜>")
FENCED = re.compile(r"\s*(\S+)\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return the text around the calls, and the calls."""
    content, calls = marked_calls(text, OPEN, CLOSE, read_call)
    return AROUND.sub("", content), calls


def read_call(body: str) -> WrittenCall:
    """Return the call that the words between two marks make."""
    first, mark, rest = body.partition(SEPARATOR)
    if not mark:
        return WrittenCall(body.strip(), fault=f"a call is a name, {SEPARATOR} and JSON")
    fenced = FENCED.fullmatch(rest)
    name, given = (fenced[1], fenced[2]) if fenced and first.strip() == "function" else (first.strip(), rest)
    value, end, fault = read_json(given)
    if fault is None and given[end:].strip():
        fault = "something stands behind the JSON"
    if fault is not None:
        return WrittenCall(body.strip(), name, fault=fault)
    return json_call(body.strip(), {"name": name, "arguments": value})


DEEPSEEK = Format("deepseek", calls_in)
