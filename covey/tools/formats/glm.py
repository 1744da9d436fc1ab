"""GLM-4.5 and later: `<tool_call>name`, then `<arg_key>` and `<arg_value>` in turns, `</tool_call>`."""

from __future__ import annotations

import re

from covey.tools.formats.parsed import Format, Schemas, WrittenCall, marked_calls

PAIR = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return the text around the calls, and the calls."""
    return marked_calls(text, "<tool_call>", "</tool_call>", read_call)


def read_call(body: str) -> WrittenCall:
    """Return the call that the words between two marks make."""
    name, mark, rest = body.partition("<arg_key>")
    rest, arguments = mark + rest, {}
    while pair := PAIR.match(rest):
        arguments[pair[1].strip()] = pair[2]
        rest = rest[pair.end() :]
    if rest.strip():
        return WrittenCall(
            body.strip(), name.strip(), fault=f"{rest.strip()[:60]!r} is no <arg_key> with its <arg_value>"
        )
    if not re.fullmatch(r"[\w.\-]+", name.strip()):
        return WrittenCall(body.strip(), fault=f"{name.strip()[:60]!r} is no name of a tool")
    return WrittenCall(body.strip(), name.strip(), arguments)


GLM = Format("glm", calls_in)
