"""Dataset rows → prompts.

A row has a column `prompt`, text or messages; every other column is carried along untouched and reaches the rewards.
Prompts above `max_prompt_length` are cut, dropped or refused; cutting takes the user's words from the left and keeps the
template's markers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.errors import DatasetError
from covey.sample.chat import Tokenizer, encode_prompt, leading_bos
from covey.types import Message, Overlong, Prompt, PromptContent

TEMPLATE_COLUMN = "chat_template_kwargs"
"""A column of this name adds to the run's chat-template arguments for its row."""


@dataclass(frozen=True)
class PromptReader:
    """Turns rows into prompts. Pure: the same row gives the same prompt."""

    tokenizer: Tokenizer
    template: Mapping[str, Any] = field(default_factory=dict)
    """Extra arguments for the chat template, for every row."""
    max_length: int | None = None
    """Tokens that a prompt may have; None: as many as the context holds."""
    overlong: Overlong = "truncate"
    context: int | None = None
    """Positions of the model; None: no limit known."""
    reserved: int = 0
    """Positions kept for the completion."""

    def read(self, row: Mapping[str, Any], number: int, seed_key: tuple[int, ...]) -> Prompt:
        """One prompt.

        Args:
            number: position of the row in its dataset.
            seed_key: what tells this prompt from others to the random numbers.

        Raises:
            DatasetError: no usable prompt in the row, or one that is too long and may not be cut.
        """
        content = checked_content(row, number)
        template = {**self.template, **(row.get(TEMPLATE_COLUMN) or {})}
        ids = encode_prompt(self.tokenizer, content, template)
        if not ids:
            raise DatasetError(
                f"Row {number}: the prompt has no tokens. A completion needs something to continue."
            )
        kept = self._fitted(content, ids, template, number)
        columns = {name: value for name, value in row.items() if name != "prompt"}
        return Prompt(content, tuple(kept), columns, number, seed_key, len(ids) - len(kept))

    def is_kept(self, row: Mapping[str, Any], number: int) -> bool:
        """Whether `overlong="drop"` leaves the row in.

        Raises:
            DatasetError: `overlong="error"`, and the prompt is too long.
        """
        if self.max_length is None or self.overlong == "truncate":
            return True
        template = {**self.template, **(row.get(TEMPLATE_COLUMN) or {})}
        length = len(encode_prompt(self.tokenizer, checked_content(row, number), template))
        if length > self.max_length and self.overlong == "error":
            raise self._too_long(number, length)
        return length <= self.max_length

    def _fitted(
        self, content: PromptContent, ids: list[int], template: dict[str, Any], number: int
    ) -> list[int]:
        if self.max_length is not None and len(ids) > self.max_length:
            if self.overlong != "truncate":
                raise self._too_long(number, len(ids))
            ids = self._cut(content, ids, template, number, self.max_length)
        if self.context is not None and len(ids) + self.reserved > self.context:
            raise DatasetError(self._does_not_fit(number, len(ids), self.context))
        return ids

    def _does_not_fit(self, number: int, length: int, context: int) -> str:
        room = context - self.reserved
        ways = [f"set max_prompt_length to at most {room}"] if room > 0 else []
        ways += [f"lower max_completion_length to at most {context - length}"] if context > length else []
        advice = " or ".join(ways) or "shorten the prompt"
        return (
            f"Row {number}: the prompt has {length} tokens, and with max_completion_length {self.reserved} it does not fit "
            f"into the model's {context} positions: {advice}."
        )

    def _cut(
        self, content: PromptContent, ids: list[int], template: dict[str, Any], number: int, limit: int
    ) -> list[int]:
        if isinstance(content, str):
            bos = [ids[0]] if leading_bos(self.tokenizer) is not None else []
            return bos + ids[len(ids) - limit + len(bos) :]
        return cut_chat(lambda m: encode_prompt(self.tokenizer, m, template), content, limit, number)

    def _too_long(self, number: int, length: int) -> DatasetError:
        return DatasetError(
            f"Row {number}: the prompt has {length} tokens, max_prompt_length is {self.max_length}, and overlong_prompts is "
            f'{self.overlong!r}. Raise the limit, shorten the prompt, or set overlong_prompts to "truncate" or "drop".'
        )


def cut_chat(
    encode: Callable[[list[Message]], list[int]], messages: list[Message], limit: int, number: int
) -> list[int]:
    """Ids of a chat whose user content is cut from the left until it fits; the template's markers stay.

    The first user message gives way first. Characters are taken in proportion to the tokens that are over, at least one
    at a time, so the result is at most a few tokens below the limit.
    """
    messages = [dict(m) for m in messages]
    ids = encode(messages)
    while len(ids) > limit:
        message = next((m for m in messages if m.get("role") == "user" and m.get("content")), None)
        if message is None or not isinstance(message["content"], str):
            raise DatasetError(
                f"Row {number}: without any of the user's text the chat still has {len(ids)} tokens, and max_prompt_length "
                f"is {limit}. Raise it, or shorten the other messages."
            )
        text, over = message["content"], len(ids) - limit
        message["content"] = text[max(1, over * len(text) // len(ids)) :]
        ids = encode(messages)
    return ids


def checked_content(row: Mapping[str, Any], number: int) -> PromptContent:
    """The row's prompt: non-empty text, or a list of messages.

    Raises:
        DatasetError: what is there instead.
    """
    if "prompt" not in row:
        raise DatasetError(
            f"Row {number} has no column 'prompt'; its columns are {', '.join(map(repr, row))}. Rename the one that holds "
            "the prompts: dataset.rename_column(..., 'prompt')."
        )
    content = row["prompt"]
    if isinstance(content, str) and content:
        return content
    if isinstance(content, list | tuple) and content and all(_is_message(m) for m in content):
        return [{k: v for k, v in m.items() if v is not None} for m in content]
    raise DatasetError(
        f"Row {number}: 'prompt' is {_describe(content)}. It must be non-empty text, or a list of messages "
        "{'role': ..., 'content': ...}."
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 80 else text[:77] + '...'}"


def seed_keys(rows: Sequence[int]) -> list[tuple[int, ...]]:
    """A seed key per row of a round of sampling; a row that occurs again gets a number of its own."""
    seen: dict[int, int] = {}
    keys: list[tuple[int, ...]] = []
    for row in rows:
        keys.append((row, seen.get(row, 0)))
        seen[row] = seen.get(row, 0) + 1
    return keys
