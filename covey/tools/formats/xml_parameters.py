"""Qwen3.5, Qwen3-Coder, Nemotron 3: `<function=name>` with `<parameter=name>`, between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

import re

from covey.tools.formats.parsed import Format, Schemas, WrittenCall, marked_calls

FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return the text around the calls, and the calls."""
    if "<tool_call>" in text:
        return marked_calls(text, "<tool_call>", "</tool_call>", read_call)
    return marked_calls(
        text, "<function=", "</function>", lambda body: read_call(f"<function={body}</function>")
    )


def read_call(body: str) -> WrittenCall:
    """Return the call that the words between two marks make."""
    found = FUNCTION.fullmatch(body)
    if found is None:
        return WrittenCall(body.strip(), fault="a call is <function=name> ... </function>")
    name, inner = found[1].strip(), found[2]
    arguments, place = {}, 0
    for parameter in PARAMETER.finditer(inner):
        if inner[place : parameter.start()].strip():
            break
        arguments[parameter[1].strip()] = parameter[2].removeprefix("\n").removesuffix("\n")
        place = parameter.end()
    if rest := inner[place:].strip():
        return WrittenCall(body.strip(), name, fault=f"{rest[:60]!r} is no <parameter=name> ... </parameter>")
    return WrittenCall(body.strip(), name, arguments)


XML_PARAMETERS = Format("xml_parameters", calls_in)
