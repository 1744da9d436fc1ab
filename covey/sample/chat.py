"""Messages or text → token ids, once; and token ids → text.

BOS stands exactly once where the tokenizer puts one before plain text, and not at all where it does not: a chat
template that prints its own is not given a second, one that prints none is given the one that plain text has. What a
tokenizer puts behind plain text is left out: a completion goes on where the text ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from covey.errors import DatasetError
from covey.sample.messages import MARK, as_the_template_reads
from covey.types import Message, PromptContent

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers import PreTrainedTokenizerBase as Tokenizer


@dataclass
class Clock:
    """The moment that chat templates take for the present: the start of the run, also after resuming on another day."""

    start: datetime = field(default_factory=datetime.now)

    def stopped(self, template: str) -> str:
        """Return a chat template in which `strftime_now` gives the start, in front of everything a macro of that name."""
        values = {f"%{code}": self.start.strftime(f"%{code}") for code in "aAbBcdfGHIjmMpSuUVwWxXyYzZ"}
        values |= {f"%-{code}": values[f"%{code}"].lstrip("0") or "0" for code in "dHIjmMSUWy"}
        filled = "".join(
            f" | replace({json.dumps(code)}, {json.dumps(value)})" for code, value in values.items()
        )
        return f"{{%- macro strftime_now(form) -%}}{{{{- form{filled} -}}}}{{%- endmacro %}}\n{template}"


def encode_prompt(
    tokenizer: Tokenizer, content: PromptContent, template: Mapping[str, object] | None = None
) -> list[int]:
    """Return the token ids of a prompt, ready to be continued.

    Args:
        content: text, or the messages of a chat. A chat that closes with an assistant message is continued, not
            answered.
        template: extra arguments for the chat template, for example `{"enable_thinking": False}`.

    Raises:
        DatasetError: messages for a tokenizer without a chat template.
    """
    if isinstance(content, str):
        ids = list(tokenizer(content)["input_ids"])
        return with_one_bos(tokenizer, ids[: len(ids) - num_appended(tokenizer)])
    if getattr(tokenizer, "chat_template", None) is None:
        raise DatasetError(
            "The prompts are chats (lists of messages), and the tokenizer "
            f"{getattr(tokenizer, 'name_or_path', '')!r} has no chat template. Give it one (tokenizer.chat_template = ...), "
            "use an instruction-tuned model, or make the prompts plain text."
        )
    apply: Any = tokenizer.apply_chat_template
    more = _asked(content, template)
    encoded = apply(_read(tokenizer, content, more), tokenize=True, return_dict=True, **more)
    return with_one_bos(tokenizer, list(encoded["input_ids"]))


def render_prompt(
    tokenizer: Tokenizer, content: PromptContent, template: Mapping[str, object] | None = None
) -> str:
    """Return the text whose tokens `encode_prompt` gives, its BOS written out: a processor writes pictures into it."""
    text = content if isinstance(content, str) else ""
    if not isinstance(content, str):
        more = _asked(content, template)
        text = str(tokenizer.apply_chat_template(_read(tokenizer, content, more), tokenize=False, **more))
    if leading_bos(tokenizer) is None:
        return text
    bos = str(tokenizer.bos_token)
    while text.startswith(bos):
        text = text[len(bos) :]
    return bos + text


def _asked(messages: Sequence[Message], template: Mapping[str, object] | None) -> dict[str, Any]:
    """Return the arguments of a chat template: a chat that closes with an assistant message is continued."""
    continues = bool(messages) and messages[-1].get("role") == "assistant"
    return {"add_generation_prompt": not continues, "continue_final_message": continues, **(template or {})}


def _read(tokenizer: Tokenizer, messages: Sequence[Message], more: Mapping[str, Any]) -> list[Message]:
    """Return messages in the form that the chat template reads."""
    apply: Any = tokenizer.apply_chat_template
    return as_the_template_reads(messages, lambda chat: str(apply(chat, tokenize=False, **more)))


def with_one_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Return the ids with the leading BOS that plain text has, exactly once."""
    bos = leading_bos(tokenizer)
    if bos is None:
        return ids
    start = 0
    while start < len(ids) and ids[start] == bos:
        start += 1
    return [bos, *ids[start:]]


def leading_bos(tokenizer: Tokenizer) -> int | None:
    """Return the BOS id that the tokenizer puts before plain text; None if it puts none."""
    bos = getattr(tokenizer, "bos_token_id", None)
    ids = list(tokenizer("a")["input_ids"])
    return bos if bos is not None and len(ids) > 1 and ids[0] == bos else None


def num_appended(tokenizer: Tokenizer) -> int:
    """Return how many tokens the tokenizer puts behind plain text, such as an end token."""
    whole = list(tokenizer("a")["input_ids"])
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    before = next((i for i in range(len(whole)) if bare and whole[i : i + len(bare)] == bare), None)
    return 0 if before is None else len(whole) - before - len(bare)


def closing_tokens(tokenizer: Tokenizer, template: Mapping[str, object] | None = None) -> list[int]:
    """Return the special tokens with which the chat template closes an answer.

    Raises:
        Exception: whatever the template raises of a question and an answer.
    """
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
    apply: Any = tokenizer.apply_chat_template
    read = _read(tokenizer, messages, template or {})
    _, found, tail = str(apply(read, tokenize=False, **(template or {}))).rpartition(MARK)
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    ids = list(tokenizer(tail, add_special_tokens=False)["input_ids"]) if found else []
    return [i for i in ids if i in special]


def decode_text(
    tokenizer: Tokenizer, ids: Sequence[int], ending: frozenset[int], keep_special: bool = False
) -> str:
    """Return the text of a completion without the end and padding tokens.

    Args:
        ending: ids that do not belong to the text: end-of-sequence and padding.
        keep_special: keep other special tokens, such as tool-call markers.
    """
    kept = [i for i in ids if i not in ending]
    return str(
        tokenizer.decode(kept, skip_special_tokens=not keep_special, clean_up_tokenization_spaces=False)
    )


def stop_ids(
    tokenizer: Tokenizer,
    generation_config: GenerationConfig | None = None,
    more: Sequence[int] | int | None = None,
) -> tuple[int, ...]:
    """Return every id that ends a completion: the tokenizer's, those of the model's generation config, and `more`."""
    found: list[int] = []
    own = (getattr(holder, "eos_token_id", None) for holder in (tokenizer, generation_config))
    for source in (*own, more):
        several = [source] if source is None or isinstance(source, int) else source
        found += [int(i) for i in several if i is not None]
    return tuple(dict.fromkeys(found))
