"""Dataset rows → prompts.

A row has a column `prompt`, text or messages; every other column is carried along untouched and reaches the rewards.
Prompts above `max_prompt_length` are cut, dropped or refused; cutting takes the user's words from the left and keeps the
template's markers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from covey.errors import DatasetError
from covey.sample.chat import encode_prompt, leading_bos
from covey.types import TEMPLATE_ARGUMENTS, Message, Overlong, Prompt, PromptContent

if TYPE_CHECKING:
    from covey.sample.chat import Tokenizer

TEMPLATE_COLUMN = "chat_template_kwargs"
"""A column of this name adds to the run's chat-template arguments for its row."""


@dataclass(frozen=True)
class PromptReader:
    """Turns rows into prompts. Pure: the same row gives the same prompt."""

    tokenizer: Tokenizer
    template: Mapping[str, object] = field(default_factory=dict)
    """Extra arguments for the chat template, for every row."""
    max_length: int | None = None
    """Tokens that a prompt may have; None: as many as the context holds."""
    overlong: Overlong = "truncate"
    context: int | None = None
    """Positions of the model; None: no limit known."""
    reserved: int = 0
    """Positions kept for the completion."""

    def read(self, row: Mapping[str, object], number: int, seed_key: tuple[int, ...]) -> Prompt:
        """Return the prompt of a row.

        Args:
            number: position of the row in its dataset.
            seed_key: part of the key of the random numbers: tells this prompt from others.

        Raises:
            DatasetError: no usable prompt in the row, or one that is too long and may not be cut.
        """
        content, template = checked_content(row, number), self._template(row, number)
        ids = encode_prompt(self.tokenizer, content, template)
        if not ids:
            raise DatasetError(
                f"Row {number}: the prompt has no tokens. A completion needs something to continue."
            )
        kept = self._fitted(content, ids, template, number)
        columns = {name: value for name, value in row.items() if name != "prompt"}
        return Prompt(content, tuple(kept), columns, number, seed_key, len(ids) - len(kept))

    def is_kept(self, row: Mapping[str, object], number: int) -> bool:
        """Return whether `overlong="drop"` leaves the row in.

        Raises:
            DatasetError: `overlong="error"`, and the prompt is too long.
        """
        if self.max_length is None or self.overlong == "truncate":
            return True
        length = len(encode_prompt(self.tokenizer, checked_content(row, number), self._template(row, number)))
        if length > self.max_length and self.overlong == "error":
            raise self._too_long(number, length)
        return length <= self.max_length

    def _template(self, row: Mapping[str, object], number: int) -> dict[str, object]:
        """Return the arguments of the row's chat template; None is what Arrow fills in, an empty list of tools is none."""
        own: Any = row.get(TEMPLATE_COLUMN) or {}
        if not isinstance(own, Mapping):
            raise DatasetError(
                f"Row {number}: {TEMPLATE_COLUMN!r} is {own!r}. It must be a mapping of names to values."
            )
        own = {name: value for name, value in own.items() if value is not None}
        taken = sorted(TEMPLATE_ARGUMENTS & set(own))
        if taken:
            raise DatasetError(
                f"Row {number}: {TEMPLATE_COLUMN!r} has {', '.join(map(repr, taken))}, which Covey says to the chat template "
                "itself. Leave it out."
            )
        template = {**self.template, **own}
        return template if template.get("tools") else {n: v for n, v in template.items() if n != "tools"}

    def _fitted(
        self, content: PromptContent, ids: list[int], template: Mapping[str, object], number: int
    ) -> list[int]:
        """Cut the ids to `max_length`, and refuse what the context does not hold."""
        limit = self.max_length
        if limit is not None and len(ids) > limit:
            if self.overlong != "truncate":
                raise self._too_long(number, len(ids))
            if isinstance(content, str):
                bos = [ids[0]] if leading_bos(self.tokenizer) is not None else []
                ids = bos + ids[len(ids) - limit + len(bos) :]
            else:
                ids = cut_chat(lambda m: encode_prompt(self.tokenizer, m, template), content, limit, number)
        length, context, reserved = len(ids), self.context, self.reserved
        if context is not None and length + reserved > context:
            ways = [f"set max_prompt_length to at most {context - reserved}"] if context > reserved else []
            ways += [f"lower max_completion_length to at most {context - length}"] if context > length else []
            raise DatasetError(
                f"Row {number}: the prompt has {length} tokens, and with max_completion_length {reserved} it does not fit "
                f"into the model's {context} positions: {' or '.join(ways) or 'shorten the prompt'}."
            )
        return ids

    def _too_long(self, number: int, length: int) -> DatasetError:
        return DatasetError(
            f"Row {number}: the prompt has {length} tokens, max_prompt_length is {self.max_length}, and overlong_prompts is "
            f'{self.overlong!r}. Raise the limit, shorten the prompt, or set overlong_prompts to "truncate" or "drop".'
        )


def cut_chat(
    encode: Callable[[list[Message]], list[int]], messages: list[Message], limit: int, number: int
) -> list[int]:
    """Return the ids of a chat whose user content is cut from the left until it fits; the template's markers stay.

    The first user message gives way first, in proportion to the tokens that are over; at most a few too many go.
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


def checked_content(row: Mapping[str, object], number: int) -> PromptContent:
    """Return the row's prompt, non-empty text or messages; raise a DatasetError that names anything else."""
    if "prompt" not in row:
        raise DatasetError(
            f"Row {number} has no column 'prompt'; its columns are {', '.join(map(repr, row))}. Rename the one that holds "
            "the prompts: dataset.rename_column(..., 'prompt')."
        )
    content = row["prompt"]
    if isinstance(content, str) and content:
        return content
    messages = content if isinstance(content, list | tuple) else []
    if messages and all(isinstance(m, Mapping) and "role" in m and "content" in m for m in messages):
        return [{k: v for k, v in m.items() if v is not None} for m in messages]
    text = repr(content)
    found = f"{type(content).__name__} {text if len(text) < 80 else text[:77] + '...'}"
    raise DatasetError(
        f"Row {number}: 'prompt' is {found}. It must be non-empty text, or a list of messages "
        "{'role': ..., 'content': ...}."
    )


def seed_keys(rows: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a seed key per row of a round of sampling; a row that occurs again gets a number of its own."""
    seen: dict[int, int] = {}
    keys: list[tuple[int, ...]] = []
    for row in rows:
        keys.append((row, seen.get(row, 0)))
        seen[row] = seen.get(row, 0) + 1
    return keys
