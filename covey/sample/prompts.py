"""Dataset rows → prompts.

A row has a column `prompt`, text or messages. `tools` and `chat_template_kwargs` go to the chat template too; every column
but the prompt is carried along untouched and reaches the rewards. Prompts above `max_prompt_length` are cut, dropped or
refused; cutting takes the user's words from the left and keeps the template's markers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from covey.errors import DatasetError
from covey.sample.chat import Clock, encode_prompt, leading_bos
from covey.sample.messages import checked_content, without_nones
from covey.types import TEMPLATE_ARGUMENTS, Message, Overlong, Prompt, PromptContent, message_text

if TYPE_CHECKING:
    from covey.sample.chat import Tokenizer

TEMPLATE_COLUMN, TOOLS_COLUMN = "chat_template_kwargs", "tools"
"""The first adds to the run's chat-template arguments for its row; the second are the tools that the template prints."""


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
    vocabulary: int | None = None
    """Rows of the policy's embedding; None: not known."""
    clock: Clock = field(default_factory=Clock)
    """What a template's `strftime_now` reads."""

    def read(self, row: Mapping[str, object], number: int, seed_key: tuple[int, ...]) -> Prompt:
        """Return the prompt of a row.

        Args:
            number: position of the row in its dataset.
            seed_key: part of the key of the random numbers: tells this prompt from others.

        Raises:
            DatasetError: no usable prompt in the row, or one that is too long and may not be cut.
        """
        content, template = checked_content(row, number), self.arguments(row, number)
        ids = self._encoded(content, template, number)
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
        length = len(self._encoded(checked_content(row, number), self.arguments(row, number), number))
        if length > self.max_length and self.overlong == "error":
            raise self._too_long(number, length)
        return length <= self.max_length

    def arguments(self, row: Mapping[str, object], number: int) -> dict[str, object]:
        """Return the arguments of the chat template for a row: those of the run, over them the row's own, and its tools.

        Raises:
            DatasetError: the row's are no mapping, or say what Covey says itself; or its tools are no list.
        """
        given: dict[str, Any] = {**self.template, **row_arguments(row, number)}
        given = {
            name: value for name, value in given.items() if name not in (TOOLS_COLUMN, "documents") or value
        }
        written: Any = given.get("chat_template") or getattr(self.tokenizer, "chat_template", "")
        if "strftime_now" in str(written):
            chosen = self.tokenizer.get_chat_template(given.get("chat_template"), given.get(TOOLS_COLUMN))
            given["chat_template"] = self.clock.stopped(chosen)
        return given

    def _encoded(self, content: PromptContent, template: Mapping[str, object], number: int) -> list[int]:
        """Return the ids of a prompt; what template and tokenizer raise, or an id beyond the embedding, names the row."""
        try:
            ids = encode_prompt(self.tokenizer, content, template)
            highest = max(ids, default=0)
        except Exception as error:  # template and tokenizer are code of others, and raise what they like
            what = "tokenizer" if isinstance(content, str) else "chat template"
            fault = f"the {what} refuses the prompt: {type(error).__name__}: {error}. Change the row, or the {what}."
            raise DatasetError(
                f"Row {number}: {error if isinstance(error, DatasetError) else fault}"
            ) from error
        if self.vocabulary is not None and highest >= self.vocabulary:
            token = self.tokenizer.convert_ids_to_tokens(highest)
            raise DatasetError(
                f"Row {number}: the prompt holds the token {token!r} with the number {highest}, and the policy's embedding has "
                f"{self.vocabulary} rows. Take its own tokenizer, or call model.resize_token_embeddings(len(tokenizer))."
            )
        return ids

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
                ids = cut_chat(lambda m: self._encoded(m, template, number), content, limit, number)
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
    messages, ids = [dict(m) for m in messages], encode(messages)
    while len(ids) > limit:
        message = next((m for m in messages if m.get("role") == "user" and message_text(m)), None)
        if message is None:
            raise DatasetError(
                f"Row {number}: without any of the user's text the chat still has {len(ids)} tokens, and max_prompt_length "
                f"is {limit}. Raise it, or shorten the other messages."
            )
        text, over = message_text(message), len(ids) - limit
        kept = text[max(1, over * len(text) // len(ids)) :]
        message["content"] = kept if isinstance(message["content"], str) else [{"type": "text", "text": kept}]
        ids = encode(messages)
    return ids


def row_arguments(row: Mapping[str, object], number: int) -> dict[str, Any]:
    """Return what a row says to the chat template: its arguments, and its tools where it has any."""
    own = _from_json(without_nones(row.get(TEMPLATE_COLUMN))) or {}
    taken = sorted(TEMPLATE_ARGUMENTS & set(own)) if isinstance(own, dict) else [repr(own)[:80]]
    if taken:
        raise DatasetError(
            f"Row {number}: {TEMPLATE_COLUMN!r} is or holds {', '.join(taken)}. It must be a mapping of the template's own "
            f"variables, without what Covey says to it itself. Leave it out."
        )
    tools = _from_json(without_nones(row.get(TOOLS_COLUMN)))
    if tools is not None and not isinstance(tools, list):
        raise DatasetError(
            f"Row {number}: {TOOLS_COLUMN!r} is {type(tools).__name__} {repr(tools)[:60]}. It must be a list of JSON schemas, as a "
            "list or as JSON text: the chat template prints it. A column that means something else needs another name."
        )
    return {**own, **({TOOLS_COLUMN: [_from_json(tool) for tool in tools]} if tools else {})}


def _from_json(value: Any) -> Any:
    """Return what JSON text stands for; anything else, and text that is none, as it is."""
    try:
        return json.loads(value) if isinstance(value, str) and value.strip() else (value or None)
    except ValueError:
        return value


def seed_keys(rows: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a seed key per row of a round of sampling; a row that occurs again gets a number of its own."""
    seen: dict[int, int] = {}
    keys: list[tuple[int, ...]] = []
    for row in rows:
        keys.append((row, seen.get(row, 0)))
        seen[row] = seen.get(row, 0) + 1
    return keys
