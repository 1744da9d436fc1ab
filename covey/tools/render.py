"""Messages → text → ids, with text of tools in it that must stay text.

A result may hold the words of a control token. They are broken in two before the text is encoded, so that the policy reads
exactly what the tool said and no control token is among it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from covey.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

BREAK = "coveysbreak"
"""Marks, in a text that is rendered, a place at which it is cut before it is encoded."""
MARKER = re.compile(r"[<\[].*[>\]]", re.DOTALL)
"""The look of an added token that is no word: `<tool_call>`, `[TOOL_CALLS]`, `<｜tool▁call▁begin｜>`."""


@dataclass(frozen=True)
class Renderer:
    """Reads and writes the tokenizer's language."""

    tokenizer: Tokenizer

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids of control tokens, and of markers within a turn: of calls, results, thinking.

        Other added tokens are words like any: Gemma has some for runs of spaces and line breaks, and a result is read with them.
        """
        added = self.tokenizer.added_tokens_decoder
        return self.special_ids | {i for i, token in added.items() if MARKER.fullmatch(token.content)}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens alone: those that end and open turns, not markers within a turn."""
        own = {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return frozenset({*self.tokenizer.all_special_ids, *own})

    @cached_property
    def _control(self) -> re.Pattern[str]:
        texts = {self.token_text(i) for i in self.control_ids} - {""}
        longest = sorted((t for t in texts if len(t) > 1), key=len, reverse=True)
        return re.compile("(?=" + "|".join(map(re.escape, longest or ["(?!)"])) + ")")

    @cached_property
    def _special(self) -> re.Pattern[str]:
        texts = sorted({self.token_text(i) for i in self.special_ids} - {""}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) if texts else "(?!)")

    def token_text(self, number: int) -> str:
        """Return how a control token is written in a text."""
        return str(self.tokenizer.convert_ids_to_tokens(number) or "")

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text as it stands: its control tokens count as such."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def plain(self, text: str) -> str:
        """Return a text without control tokens of turns, for those who read messages."""
        return self._special.sub("", text)

    def neutral(self, text: str, mark: str) -> str:
        """Return a text that can be rendered: a mark stands behind the first letter of each control token in it."""
        starts = [match.start() + 1 for match in self._control.finditer(text)]
        pieces = [text[a:b] for a, b in zip([0, *starts], [*starts, len(text)], strict=True)]
        return mark.join(pieces)

    def encode_neutral(self, text: str, mark: str) -> list[int]:
        """Return the ids of a text with such marks in it, which are taken out."""
        return [i for piece in text.split(mark) for i in self.encode(piece)]

    def render(self, messages: Sequence[Message], template: Mapping[str, Any], goes_on: bool = True) -> str:
        """Return a chat as text.

        Args:
            template: arguments of the chat template, tools included.
            goes_on: end it where the policy begins its next turn.
        """
        apply: Any = self.tokenizer.apply_chat_template
        more = {**template, "add_generation_prompt": goes_on, "continue_final_message": False}
        return str(apply(list(messages), tokenize=False, **more))

    def head_of(self, ids: Sequence[int]) -> str:
        """Return what a template has written of the turn that follows `ids`: the text behind their last control token."""
        last = max((n for n, i in enumerate(ids) if i in self.special_ids), default=-1)
        return self.decode(ids[last + 1 :])


def unused_mark(texts: Sequence[str]) -> str:
    """Return a mark that is in none of the texts."""
    mark = BREAK
    while any(mark in text for text in texts):
        mark += "s"
    return mark
