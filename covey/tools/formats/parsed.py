"""Format: a policy's turn as text → content, thinking and calls.

A call that cannot be read is data too: it carries the reason, and its neighbours are read as if it were not there. Thinking is cut
out first: what was only drafted there is no call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

THINK = ("<think>", "</think>")

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schema of each tool by its name, as chat templates take them: {"type": "function", "function": {...}}."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as the policy wrote it. Values that are written without a type are text: the tool's schema says what they are."""

    text: str
    """The words that make the call, without the markers around it."""
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None
    """Why it is no call; None: it is one."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A turn taken apart."""

    content: str
    """What is neither thinking nor a call; as it was written where there is neither."""
    reasoning: str | None = None
    calls: tuple[WrittenCall, ...] = ()


CallsIn = Callable[[str, Schemas], tuple[str, Sequence[WrittenCall]]]
"""Text without thinking, and the schemas of the tools → what is left of the text, and the calls."""


Thoughts = Callable[[str, str], tuple[str, str | None]]
"""Turn, and what the template has written of it already → the turn without thinking, and that; None where there is none."""


def cut_think(text: str, prefix: str) -> tuple[str, str | None]:
    """Cut what stands between `<think>` and `</think>`."""
    return without_thinking(text, prefix, (THINK,))


@dataclass(frozen=True)
class Format:
    """One family's way to write a call."""

    name: str
    calls_in: CallsIn
    thoughts: Thoughts = cut_think
    spoken: Callable[[str], str] = str
    """Text without thinking → what is said in it, where it has no calls."""

    def parse(self, text: str, prefix: str, schemas: Schemas) -> Parsed:
        """Return a turn taken apart.

        Args:
            text: the turn with its control tokens, without the one that ended it.
            prefix: what the template has written of the turn already; it may have opened the thinking.
            schemas: of the tools, by name.
        """
        rest, reasoning = self.thoughts(text, prefix)
        content, calls = self.calls_in(rest, schemas)
        if not calls:
            return self._said(rest, reasoning)
        return Parsed(content.strip(), reasoning, tuple(calls))

    def cut_short(self, text: str, prefix: str) -> Parsed:
        """Return a turn that a limit ended: thinking apart, and no call, for half a call may say another thing."""
        return self._said(*self.thoughts(text, prefix))

    def _said(self, rest: str, reasoning: str | None) -> Parsed:
        """Return a turn without calls; its words as they were written, where nothing was cut out of them."""
        content = self.spoken(rest)
        return Parsed(content if reasoning is None else content.strip(), reasoning)


def without_thinking(text: str, prefix: str, marks: Sequence[tuple[str, str]]) -> tuple[str, str | None]:
    """Return a text without what stands between marks of thinking, and that; None where there are none.

    Thinking that nobody closed goes on to the end. A closing mark alone closes what began with the text.
    """
    found: list[str] = []
    for opens, closes in marks:
        inside = prefix.rfind(opens) > prefix.rfind(closes)
        before_open = text.partition(opens)[0]
        rest = ""
        if not inside and closes in before_open:
            inside = True
        while text:
            if inside:
                thought, _, text = text.partition(closes)
                found.append(thought.removeprefix(opens).strip())
            else:
                kept, mark, text = text.partition(opens)
                rest += kept
                if mark and not text:
                    found.append("")
            inside = not inside
        text = rest
    return text, "\n".join(thought for thought in found if thought) if found else None


def json_call(text: str, value: object, names: Sequence[str] = ("arguments", "parameters")) -> WrittenCall:
    """Return the call that a JSON value says, or why it says none.

    Args:
        text: what it was read from.
        names: keys under which arguments may stand.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return WrittenCall(text, fault="a call is an object with a 'name' and 'arguments'")
    arguments: object = next((value[name] for name in names if name in value), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return WrittenCall(text, value["name"], fault="its arguments are text that is no JSON")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return WrittenCall(text, value["name"], fault="its arguments are no object {name: value}")
    return WrittenCall(text, value["name"], arguments)


def read_json(text: str) -> tuple[Any, int, str | None]:
    """Return the JSON value at the start of a text, where it ends, and why there is none."""
    start = len(text) - len(text.lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        return value, end, None
    except ValueError as error:
        return None, start, f"it is no JSON: {error}"
    except RecursionError:
        return None, start, "it is nested too deeply"


def marked_calls(
    text: str, opens: str, closes: str, read: Callable[[str], WrittenCall]
) -> tuple[str, list[WrittenCall]]:
    """Return the text around calls that stand between two marks, and the calls; `read` makes one of the words between."""
    content, calls = "", []
    while opens in text:
        before, _, text = text.partition(opens)
        content += before
        body, mark, rest = text.partition(closes)
        if not mark or opens in body:  # the next one opens before this one closes
            body, mark, rest = text.partition(opens)
            calls.append(WrittenCall(body.strip(), fault=f"it is not closed by {closes}"))
            text = mark + rest
        else:
            calls.append(read(body))
            text = rest
    return content + text, calls
