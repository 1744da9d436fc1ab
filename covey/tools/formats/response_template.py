"""The tokenizer's own `response_template`, read by transformers: for families that no other format knows.

transformers reads a turn as a whole, so that one broken call makes all of it plain text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.tools.formats.parsed import Parsed, Schemas, WrittenCall, json_call


@dataclass(frozen=True)
class ResponseTemplate:
    """Reads turns with `tokenizer.parse_response`.

    Args:
        opening: a chat up to where the policy begins its turn, in which the template's anchor is found.
    """

    tokenizer: Any
    opening: str
    name: str = "response_template"

    def parse(self, text: str, prefix: str, schemas: Schemas) -> Parsed:
        """Return a turn taken apart; see `Format.parse`."""
        try:
            message = self.tokenizer.parse_response(
                text, prefix=self.opening, tools=list(schemas.values()) or None
            )
        except Exception:  # a template of others over hostile text
            return Parsed(text)
        content, reasoning = message.get("content") or "", None
        for key in ("reasoning_content", "thinking"):
            reasoning = message.get(key) or reasoning
        calls = [written(call) for call in message.get("tool_calls") or []]
        return Parsed(content, reasoning, tuple(calls))

    def cut_short(self, text: str, prefix: str) -> Parsed:
        """Return a turn that a limit ended, without calls: transformers closes what is open, so that half a call looks whole."""
        return Parsed(text)


def written(call: object) -> WrittenCall:
    """Return a call of a message, or why it is none."""
    inner = call.get("function", call) if isinstance(call, dict) else call
    return json_call(str(inner), inner)
