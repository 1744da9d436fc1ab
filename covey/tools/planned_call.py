"""Planned call: one call of a turn, from the words that the policy wrote to the text that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from covey.tools.calling import Outcome, RunningCall
from covey.tools.formats.parsed import WrittenCall
from covey.tools.result_text import error_text, message_of, result_text
from covey.tools.schema import InvalidArguments, fitted_arguments
from covey.types import CallStatus, ToolCall

if TYPE_CHECKING:
    from covey.tools.journal import Noted
    from covey.tools.tool_contract import Tool


@dataclass
class PlannedCall:
    """A call of a turn, from the text to its result."""

    written: WrittenCall
    number: int
    tool: Tool | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    text: str = ""
    running: RunningCall | None = None
    noted: Noted | None = None
    """What the journal has of it, in which case it was not run."""

    def as_data(self, turn: int) -> ToolCall:
        """Return the call as rewards and records see it."""
        status: CallStatus = "not_run" if self.outcome is None else self.outcome.status
        seconds = 0.0 if self.outcome is None else self.outcome.seconds
        given = self.arguments or self.written.arguments
        return ToolCall(self.written.name, given, f"{turn}.{self.number}", status, self.text, seconds)


def planned(written: WrittenCall, number: int, tools: Mapping[str, Tool]) -> PlannedCall:
    """Return a call that can be run, or one that is over already because it cannot."""
    call = PlannedCall(written, number, tools.get(written.name))
    if written.fault is not None:
        call.outcome = Outcome("malformed", message=f"the call cannot be read: {written.fault}")
    elif call.tool is None:
        there = ", ".join(map(repr, tools)) or "none"
        call.outcome = Outcome("unknown", message=f"there is no tool {written.name!r}; tools are {there}")
    else:
        try:
            call.arguments = fitted_arguments(written.arguments, call.tool.schema)
        except InvalidArguments as error:
            call.outcome = Outcome("invalid", message=f"{written.name}: {error}")
    return call


def with_text(outcome: Outcome, name: str) -> tuple[Outcome, str]:
    """Return what a call came to, and the text that the policy reads of it."""
    if outcome.status != "ok":
        message = outcome.message if outcome.error is None else message_of(outcome.error)
        return outcome, error_text(message or outcome.status)
    try:
        return outcome, result_text(outcome.value, name)
    except Exception as error:  # its own text may fail, and an image is refused
        return replace(outcome, status="raised", error=error), error_text(message_of(error))
