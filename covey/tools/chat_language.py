"""The language of chats: calls as a format writes them, results as the chat template writes them, messages in TRL's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey.tools.formats.parsed import Format, Parsed, Schemas
from covey.tools.formats.response_template import ResponseTemplate
from covey.types import Message, ToolCall

if TYPE_CHECKING:
    from covey.tools.suffix import Suffix


@dataclass(frozen=True)
class ChatLanguage:
    """Calls and results as messages."""

    format: Format | ResponseTemplate
    suffix: Suffix

    def parse(self, text: str, prefix: str, schemas: Schemas) -> Parsed:
        return self.format.parse(text, prefix, schemas)

    def cut_short(self, text: str, prefix: str) -> Parsed:
        return self.format.cut_short(text, prefix)

    def answer(
        self,
        names: Sequence[str],
        results: Sequence[str],
        ended_by: int | None,
        template: Mapping[str, Any],
        goes_on: bool,
    ) -> tuple[int, ...]:
        return self.suffix.ids(names, results, ended_by, template, goes_on)

    def messages(self, parsed: Parsed, calls: Sequence[ToolCall], is_answered: bool) -> list[Message]:
        """Return the assistant's message, and one of each result."""
        said: Message = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning is not None:
            said["reasoning_content"] = parsed.reasoning
        if calls:
            texts = [call.text for call in parsed.calls]
            said["tool_calls"] = [as_message(call, text) for call, text in zip(calls, texts, strict=True)]
        answers = calls if is_answered else ()
        return [said, *({"role": "tool", "name": call.name, "content": call.result} for call in answers)]


def as_message(call: ToolCall, text: str) -> dict[str, Any]:
    """Return a call as messages have it; one that could not be read keeps its words, for its arguments are always an object."""
    made: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.name, "arguments": dict(call.arguments)},
    }
    return {**made, "malformed": text} if call.status == "malformed" else made
