"""The prompt of a row: what it may be, and the form in which a chat template reads its messages.

Rewards and the record see a prompt as the dataset holds it. For the template alone, keys that are None are taken away
(Arrow fills them in where another row has the key), and content in text parts is joined where the template knows no parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.errors import DatasetError
from covey.types import Message, PromptContent, message_text

NO_TEXT_NEEDED = ("tool_calls", "function_call", "reasoning_content", "thinking")
"""Keys of an assistant's message that say what it did where it has no content."""
FREE_CONTENT = ("tool", "function", "ipython")
"""Roles whose content may be a mapping: templates write it as JSON."""
MARK, SENTINEL = "coveysprobe", "coveyssentinel"


def checked_content(row: object, number: int) -> PromptContent:
    """Return the row's prompt, non-empty text or messages, as it is; raise a DatasetError that names anything else."""
    if not isinstance(row, Mapping):
        raise DatasetError(
            f"Row {number} is {_described(row)}. A row is a mapping with a column 'prompt': {{'prompt': ...}}."
        )
    if "prompt" not in row:
        raise DatasetError(
            f"Row {number} has no column 'prompt'; its columns are {', '.join(map(repr, row))}. Rename the one that holds "
            "the prompts: dataset.rename_column(..., 'prompt')."
        )
    content = row["prompt"]
    if isinstance(content, str) and content:
        return content
    messages = list(content) if isinstance(content, list | tuple) else []
    if not messages or not all(isinstance(m, Mapping) for m in messages):
        raise DatasetError(
            f"Row {number}: 'prompt' is {_described(content)}. It must be non-empty text, or a list of messages "
            "{'role': ..., 'content': ...}."
        )
    for position, message in enumerate(messages):
        fault = message_fault(message)
        if fault:
            raise DatasetError(f"Row {number}: message {position} of 'prompt' {fault}")
    return messages


def message_fault(message: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a message, as the rest of a sentence; None where it can be read."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        return f"has the role {_described(role)}. Every message is {{'role': ..., 'content': ...}}, and its role is text."
    if isinstance(content, str) or (role in FREE_CONTENT and isinstance(content, Mapping)):
        return None
    if content is None and role == "assistant" and any(message.get(key) for key in NO_TEXT_NEEDED):
        return None
    if not isinstance(content, list | tuple):
        return (
            f"(role {role!r}) has the content {_described(content)}. It must be text, or a list of text parts "
            "{'type': 'text', 'text': ...}."
        )
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if (
            not isinstance(part, Mapping)
            or kind not in (None, "text")
            or not isinstance(part.get("text"), str)
        ):
            return (
                f"(role {role!r}) has a part in its content that is no text: {_described(part if kind is None else kind)}. "
                "Policies that see or hear are not supported yet: give text parts {'type': 'text', 'text': ...} only."
            )
    return None


def without_nones(value: Any) -> Any:
    """Return the value without the keys of its mappings that are None, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_nones(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [without_nones(v) for v in value]
    return value


def as_the_template_reads(
    messages: Sequence[Mapping[str, Any]], render: Callable[[list[Message]], str]
) -> list[Message]:
    """Return messages without keys that are None, and with content in parts joined to text where parts are not read.

    Whether they are is found out for each role by rendering: the text of a part comes out, and nothing else of it does.

    Args:
        render: renders messages to text, and raises whatever a template raises.
    """
    cleaned: list[Message] = without_nones(messages)
    in_parts = [isinstance(m.get("content"), list) for m in cleaned]
    if not any(in_parts):
        return cleaned
    joined = [
        {**m, "content": message_text(m)} if there else m for m, there in zip(cleaned, in_parts, strict=True)
    ]
    reads: dict[str, bool] = {}
    for role in {str(m["role"]) for m, there in zip(cleaned, in_parts, strict=True) if there}:
        probe = [{"type": "text", "text": MARK, SENTINEL: SENTINEL}]
        try:
            text = render([{**m, "content": probe} if m["role"] == role else m for m in joined])
        except Exception:  # whatever a template raises of parts, it does not read them
            text = ""
        reads[role] = MARK in text and SENTINEL not in text
    return [m if reads.get(str(m["role"])) else j for m, j in zip(cleaned, joined, strict=True)]


def _described(value: object) -> str:
    """Return type and value in words, cut to a line."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 80 else text[:77] + '...'}"
