"""Messages or text → token ids, once; and token ids → text.

BOS stands exactly once where the tokenizer puts one before plain text, and not at all where it does not: a chat
template that prints its own is not given a second, one that prints none is given the one that plain text has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covey.errors import DatasetError
from covey.types import PromptContent

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers import PreTrainedTokenizerBase as Tokenizer


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
        return with_one_bos(tokenizer, list(tokenizer(content)["input_ids"]))
    if getattr(tokenizer, "chat_template", None) is None:
        raise DatasetError(
            "The prompts are chats (lists of messages), and the tokenizer "
            f"{getattr(tokenizer, 'name_or_path', '')!r} has no chat template. Give it one (tokenizer.chat_template = ...), "
            "use an instruction-tuned model, or make the prompts plain text."
        )
    continues = bool(content) and content[-1].get("role") == "assistant"
    render: Any = tokenizer.apply_chat_template
    encoded = render(
        content,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        tokenize=True,
        return_dict=True,
        **(template or {}),
    )
    return with_one_bos(tokenizer, list(encoded["input_ids"]))


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
