"""Messages of calls and results, in the form that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.types import Message


@dataclass(frozen=True)
class CallStyle:
    """Form in which a template takes calls."""

    as_text: bool = False
    """Arguments as JSON text instead of an object."""
    is_single: bool = False
    """One call a turn: several results stand in one message."""


def call_id(number: int) -> str:
    """Return the id of a call within its turn: 9 letters and digits, which some templates insist on."""
    return f"call{number:05d}"


def call_message(names: Sequence[str], arguments: Sequence[Mapping[str, Any]], style: CallStyle) -> Message:
    """Return an assistant's message that makes calls, in the form that chat templates read."""
    calls = [
        {
            "id": call_id(n),
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given) if style.as_text else dict(given)},
        }
        for n, (name, given) in enumerate(zip(names, arguments, strict=True))
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result_messages(names: Sequence[str], results: Sequence[str]) -> list[Message]:
    """Return the messages of results, in the form that chat templates read."""
    return [
        {"role": "tool", "name": name, "tool_call_id": call_id(n), "content": result}
        for n, (name, result) in enumerate(zip(names, results, strict=True))
    ]
