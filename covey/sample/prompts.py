"""Dataset rows → prompts.

A row has a column `prompt`, text or messages. `tools` and `chat_template_kwargs` go to the chat template too; every column
but the prompt is carried along untouched and reaches the rewards. Prompts above `max_prompt_length` are cut, dropped or
refused; cutting takes the user's words from the left and keeps the template's markers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from covey.errors import DatasetError
from covey.models.families import FAMILIES
from covey.sample.chat import Clock, encode_prompt, leading_bos, render_prompt
from covey.sample.messages import checked_content, in_parts, without_nones
from covey.types import (
    TEMPLATE_ARGUMENTS,
    Message,
    Overlong,
    Prompt,
    PromptContent,
    is_picture,
    message_text,
    parts_of,
)
from covey.vision.blocks import filled, payloads_in
from covey.vision.pictures import PictureError, picture_of, read_picture
from covey.vision.row_pictures import Given, given_pictures, pictures_of, references

if TYPE_CHECKING:
    from covey.sample.chat import Tokenizer
    from covey.vision.eyes import Pairs, ProcessorEyes

P = TypeVar("P")
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
    tools_of: Callable[[Mapping[str, object], int], list[Any] | None] | None = None
    """The tools that the template prints for a row, given the row and its number; None: those of the row's own column."""
    eyes: ProcessorEyes | None = None
    """Read pictures; None: the policy reads text alone."""
    blind: str = "the policy reads text alone"
    """Why pictures cannot be shown; empty: `eyes` see, and so does every way that the run takes."""
    use_images: bool = True
    """False: pictures are for rewards alone, and the policy is shown the text."""
    drops_bad_images: bool = False
    """Rows with a picture that cannot be used are left out."""

    def read(self, row: Mapping[str, object], number: int, seed_key: tuple[int, ...]) -> Prompt:
        """Return the prompt of a row.

        Args:
            number, seed_key: position of the row in its dataset, and part of the key of its random numbers.

        Raises:
            DatasetError: no usable prompt in the row, or one that is too long and may not be cut.
        """
        content, template = checked_content(row, number), self.arguments(row, number)
        shown, given = self._shown(row, content, number, read_picture)
        pairs = [pair for _, pair in given]
        ids = self._encoded(shown, template, number, pairs)
        if not ids:
            raise DatasetError(f"Row {number}: the prompt has no tokens. A completion needs one to continue.")
        kept = self._fitted(shown, ids, template, number, pairs)
        cut, pictures = len(ids) - len(kept), tuple(picture for picture, _ in pairs)
        known = {(g.column, g.index): picture for g, (picture, _) in given}
        columns = references({**row, "prompt": content}, number, known)
        content = columns.pop("prompt")
        if pairs:
            content = filled(shown, pictures)
        return Prompt(content, tuple(kept), columns, number, seed_key, cut, pictures)

    @property
    def may_drop(self) -> bool:
        """Whether `is_kept` can leave out rows."""
        return self.drops_bad_images or (self.max_length is not None and self.overlong != "truncate")

    def is_kept(self, row: Mapping[str, object], number: int) -> bool:
        """Return whether `overlong="drop"` and `bad_images="drop"` leave the row in.

        Raises:
            DatasetError: `overlong="error"`, and the prompt is too long.
        """
        return self.fault(row, number) is None

    def fault(self, row: Mapping[str, object], number: int) -> Literal["long", "picture"] | None:
        """Return why a row is left out; None where it is not; raise as `is_kept` does."""
        if not self.may_drop:
            return None
        content = checked_content(row, number)
        # Damage behind the head of a file is found by decoding it alone.
        read: Callable[..., Any] = read_picture if self.drops_bad_images else picture_of
        try:
            shown, given = self._shown(row, content, number, read)
        except PictureError:
            if self.drops_bad_images:
                return "picture"
            raise
        if self.max_length is None or self.overlong == "truncate":
            return None
        sizes = [(found[0] if self.drops_bad_images else found).size for _, found in given]
        length = self._measured(shown, self.arguments(row, number), number, sizes)
        if length > self.max_length and self.overlong == "error":
            raise self._too_long(number, length)
        return "long" if length > self.max_length else None

    def _shown(
        self, row: Mapping[str, object], content: PromptContent, number: int, read: Callable[..., P]
    ) -> tuple[PromptContent, list[tuple[Given, P]]]:
        """Return what the policy is shown of a row: the prompt with bare blocks, and its pictures, each as given and as it is read.

        Raises:
            DatasetError: a picture cannot be used, or the policy cannot see.
        """
        if not self.use_images:
            return without_pictures(content), []
        given = given_pictures(row)
        if self.blind and (given or payloads_in(content)):
            column = given[0].column if given else "prompt"
            raise DatasetError(
                f"Row {number}: its column {column!r} has pictures, and {self.blind}: it would answer blind. Take a model that sees, with its "
                f"processor ({', '.join(FAMILIES)}; pip install 'covey[vision]'), and engine='native'; or leave the pictures out; or set "
                "use_images=False, which shows them to the rewards alone."
            )
        if self.eyes is not None:
            shown, pictures = pictures_of(row, content, number, self.eyes.limits, read)
            return shown if isinstance(shown, str) else in_parts(shown), pictures
        return content, []

    def arguments(self, row: Mapping[str, object], number: int) -> dict[str, object]:
        """Return the arguments of the chat template for a row: those of the run, over them the row's own, and its tools.

        Raises:
            DatasetError: the row's are no mapping, or say what Covey says itself; or its tools are no list.
        """
        if self.tools_of is not None:  # the column names some of them
            row = {**row, TOOLS_COLUMN: self.tools_of(row, number)}
        given: dict[str, Any] = {**self.template, **row_arguments(row, number)}
        given = {
            name: value for name, value in given.items() if name not in (TOOLS_COLUMN, "documents") or value
        }
        written: Any = given.get("chat_template") or getattr(self.tokenizer, "chat_template", "")
        if "strftime_now" in str(written):
            chosen = self.tokenizer.get_chat_template(given.get("chat_template"), given.get(TOOLS_COLUMN))
            given["chat_template"] = self.clock.stopped(chosen)
        return given

    def _encoded(
        self, content: PromptContent, template: Mapping[str, object], number: int, pairs: Pairs = ()
    ) -> list[int]:
        """Return the ids of a prompt; what template and tokenizer raise, or an id beyond the embedding, names the row."""
        with self._faults_named(content, number, bool(pairs)):
            if self.eyes is None:
                ids = encode_prompt(self.tokenizer, content, template)
            elif pairs:
                ids = list(self.eyes.read(render_prompt(self.tokenizer, content, template), pairs))
            else:
                ids = self.eyes.checked(encode_prompt(self.tokenizer, content, template))
            highest = max(ids, default=0)
        if self.vocabulary is not None and highest >= self.vocabulary:
            token = self.tokenizer.convert_ids_to_tokens(highest)
            raise DatasetError(
                f"Row {number}: the prompt holds the token {token!r} with the number {highest}, and the policy's embedding has "
                f"{self.vocabulary} rows. Take its own tokenizer, or call model.resize_token_embeddings(len(tokenizer))."
            )
        return ids

    def _measured(
        self,
        content: PromptContent,
        template: Mapping[str, object],
        number: int,
        sizes: Sequence[tuple[int, int]],
    ) -> int:
        """Return how many ids a prompt has whose pictures are of these sizes; their pixels are not needed."""
        if self.eyes is None or not sizes:
            return len(self._encoded(content, template, number))
        with self._faults_named(content, number, True):
            return self.eyes.length(render_prompt(self.tokenizer, content, template), sizes)

    @contextmanager
    def _faults_named(self, content: PromptContent, number: int, has_pictures: bool) -> Iterator[None]:
        """Name the row of whatever template, tokenizer and processor raise inside: they are code of others."""
        try:
            yield
        except Exception as error:
            what = (
                "processor" if has_pictures else "tokenizer" if isinstance(content, str) else "chat template"
            )
            fault = f"the {what} refuses the prompt: {type(error).__name__}: {error}. Change the row, or the {what}."
            raise DatasetError(
                f"Row {number}: {error if isinstance(error, DatasetError) else fault}"
            ) from error

    def _fitted(
        self,
        content: PromptContent,
        ids: list[int],
        template: Mapping[str, object],
        number: int,
        pairs: Pairs = (),
    ) -> list[int]:
        """Cut the ids to `max_length`, and refuse what the context does not hold."""
        limit = self.max_length
        if limit is not None and len(ids) > limit:
            if self.overlong != "truncate" or (pairs and isinstance(content, str)):
                raise self._too_long(number, len(ids))
            if isinstance(content, str):
                bos = [ids[0]] if leading_bos(self.tokenizer) is not None else []
                ids = bos + ids[len(ids) - limit + len(bos) :]
            else:
                taken = 0 if self.eyes is None else ids.count(self.eyes.image_id)
                ids = cut_chat(
                    lambda m: self._encoded(m, template, number, pairs), content, limit, number, taken
                )
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
    encode: Callable[[list[Message]], list[int]],
    messages: list[Message],
    limit: int,
    number: int,
    taken: int = 0,
) -> list[int]:
    """Return the ids of a chat whose user content is cut from the left until it fits; markers and pictures stay.

    The first user message gives way first, in proportion to the tokens that are over; at most a few too many go.

    Args:
        taken: tokens of pictures.
    """
    messages, ids = [dict(m) for m in messages], encode(messages)
    while len(ids) > limit:
        message = next((m for m in messages if m.get("role") == "user" and message_text(m)), None)
        if message is None:
            seen = f", {taken} of them of pictures," if taken else ""
            ways = "take fewer or smaller pictures (max_pixels)" if taken else "shorten the other messages"
            raise DatasetError(
                f"Row {number}: without any of the user's text the chat still has {len(ids)} tokens{seen} and max_prompt_length "
                f"is {limit}. Raise it, or {ways}."
            )
        text, over = message_text(message), len(ids) - limit
        num = max(1, over * len(text) // (len(ids) - taken))
        message["content"] = without_first(message["content"], num)
        ids = encode(messages)
    return ids


def without_first(content: Any, num: int) -> Any:
    """Return a content without its first characters of text; pictures stay."""
    if isinstance(content, str):
        return content[num:]
    kept: list[Any] = []
    for part in content:
        if is_picture(part):
            kept.append(part)
            continue
        text = str(part["text"])
        kept += [{"type": "text", "text": text[num:]}] if text[num:] else []
        num = max(0, num - len(text))
    return kept


def without_pictures(content: PromptContent) -> PromptContent:
    """Return a prompt without the blocks that stand for pictures."""
    if isinstance(content, str):
        return content
    return [
        {**m, "content": [p for p in parts_of(m) if not is_picture(p)]}
        if any(map(is_picture, parts_of(m)))
        else m
        for m in content
    ]


def row_arguments(row: Mapping[str, object], number: int) -> dict[str, Any]:
    """Return what a row says to the chat template: its arguments, and its tools where it has any."""
    own = from_json(without_nones(row.get(TEMPLATE_COLUMN))) or {}
    taken = sorted(TEMPLATE_ARGUMENTS & set(own)) if isinstance(own, dict) else [repr(own)[:80]]
    if taken:
        raise DatasetError(
            f"Row {number}: {TEMPLATE_COLUMN!r} is or holds {', '.join(taken)}. It must be a mapping of the template's own "
            f"variables, without what Covey says to it itself. Leave it out."
        )
    tools = from_json(without_nones(row.get(TOOLS_COLUMN)))
    if tools is not None and not isinstance(tools, list):
        raise DatasetError(
            f"Row {number}: {TOOLS_COLUMN!r} is {type(tools).__name__} {repr(tools)[:60]}. It must be a list of JSON schemas, as a "
            "list or as JSON text: the chat template prints it. A column that means something else needs another name."
        )
    return {**own, **({TOOLS_COLUMN: [from_json(tool) for tool in tools]} if tools else {})}


def from_json(value: Any) -> Any:
    """Return what JSON text stands for; anything else, and text that is none, as it is."""
    try:
        return json.loads(value) if isinstance(value, str) and value.strip() else (value or None)
    except ValueError:
        return value


def named_tools(column: Any) -> list[Any] | None:
    """Return the names of tools in a row's column `tools`, which holds names or schemas, or JSON of them; None: it names none."""
    if column is None or column == "":
        return None
    given = from_json(column) or []
    several = [from_json(one) for one in (given if isinstance(given, list) else [given])]
    return [one.get("function", one).get("name") if isinstance(one, dict) else one for one in several]


def seed_keys(rows: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a seed key per row of a round of sampling; a row that occurs again gets a number of its own."""
    seen: dict[int, int] = {}
    keys: list[tuple[int, ...]] = []
    for row in rows:
        keys.append((row, seen.get(row, 0)))
        seen[row] = seen.get(row, 0) + 1
    return keys
