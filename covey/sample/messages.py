"""The prompt of a row: what it may be, and the form in which a chat template reads its messages.

Rewards and the record see a prompt as the dataset holds it. For the template alone, keys that are None are taken away
(Arrow fills them in where another row has the key), and content in text parts is joined where the template knows no parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.errors import DatasetError
from covey.types import Message, PromptContent, is_picture, message_text

NO_TEXT_NEEDED = ("tool_calls", "function_call", "reasoning_content", "thinking")
"""Keys of an assistant's message that say what it did where it has no content."""
FREE_CONTENT = ("tool", "function", "ipython")
"""Roles whose content may be a mapping: templates write it as JSON."""
MARK, SENTINEL = "coveysprobe", "coveyssentinel"


def checked_content(row: object, number: int) -> PromptContent:
    """Return the row's prompt, non-empty text or messages, as it is; raise a DatasetError that names anything else."""
    if not isinstance(row, Mapping) or "prompt" not in row:
        columns = f"has the columns {', '.join(map(repr, row))}" if isinstance(row, Mapping) else ""
        raise DatasetError(
            f"Row {number} has no column 'prompt': it {columns or f'is {described(row)}'}. Rename the one that holds the prompts: "
            "dataset.rename_column(..., 'prompt')."
        )
    content = row["prompt"]
    if isinstance(content, str) and content:
        return content
    messages = list(content) if isinstance(content, list | tuple) else []
    faults = [f"message {i} of 'prompt' {x}" for i, m in enumerate(messages) if (x := message_fault(m))]
    if not messages or not isinstance(messages[0], Mapping):
        form = "non-empty text, or a list of messages {'role': ..., 'content': ...}"
        faults = [f"'prompt' is {described(content)}. It must be {form}."]
    if faults:
        raise DatasetError(f"Row {number}: {faults[0]}")
    return messages


def message_fault(message: Any) -> str | None:
    """Return what is wrong with a message, as the rest of a sentence; None where it can be read."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str) or not role:
        return f"has the role {described(role)}. Every message is {{'role': ..., 'content': ...}}, and its role is text."
    content = message.get("content")
    if isinstance(content, str) or (role in FREE_CONTENT and isinstance(content, Mapping)):
        return None
    if isinstance(content, list | tuple):
        return next((f"(role {role!r}) {fault}" for part in content if (fault := part_fault(part))), None)
    if content is None and role == "assistant" and any(message.get(key) for key in NO_TEXT_NEEDED):
        return None
    return (
        f"(role {role!r}) has the content {described(content)}. It must be text, or a list of text parts "
        "{'type': 'text', 'text': ...}."
    )


def part_fault(part: object) -> str | None:
    """Return what is wrong with a part of a message's content; None where it is text or a picture."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind in (None, "text") and isinstance(part.get("text"), str):
        return None
    if is_picture(part):
        return None
    return (
        f"has a part in its content that is neither text nor a picture: {described(part if kind is None else kind)}. Films and sound are "
        "not supported yet: give parts {'type': 'text', 'text': ...} and {'type': 'image'}."
    )


def without_nones(value: Any) -> Any:
    """Return the value without the keys of its mappings that are None, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_nones(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [without_nones(v) for v in value]
    return value


def in_parts(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose contents that are text are lists of one part, as templates of policies that see want them."""
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else m
        for m in messages
    ]


def as_the_template_reads(
    messages: Sequence[Mapping[str, Any]], render: Callable[[list[Message]], str]
) -> list[Message]:
    """Return messages without keys that are None; content in parts is joined to text where parts are not read, and text is one part
    where text is not read: many templates of policies that see print nothing of it.

    Args:
        render: renders messages to text, and raises whatever a template raises.
    """
    cleaned: list[Message] = without_nones(messages)
    joined = [{**m, "content": message_text(m)} if isinstance(m.get("content"), list) else m for m in cleaned]
    roles = {str(m["role"]) for m in cleaned if isinstance(m.get("content"), list)}
    read = {role for role in roles if reads_parts(role, joined, render)}
    chosen = [m if m["role"] in read else j for m, j in zip(cleaned, joined, strict=True)]
    lost = {role for role in roles_unread(chosen, render) if reads_parts(role, chosen, render)}
    return [in_parts([m])[0] if m["role"] in lost else m for m in chosen]


def roles_unread(messages: Sequence[Message], render: Callable[[list[Message]], str]) -> set[str]:
    """Return the roles whose contents are text of which a template prints nothing; none where it raises."""
    roles = dict.fromkeys(str(m["role"]) for m in messages if isinstance(m.get("content"), str))
    marks = {role: f"{MARK}{number}e" for number, role in enumerate(roles)}
    probes = [
        {**m, "content": marks[m["role"]]} if isinstance(m.get("content"), str) else dict(m) for m in messages
    ]
    try:
        text = render(probes) if marks else ""
    except Exception:  # whatever a template raises of a probe, what it makes of the prompt is seen later
        return set()
    return {role for role, mark in marks.items() if mark not in text}


def reads_parts(role: str, messages: Sequence[Message], render: Callable[[list[Message]], str]) -> bool:
    """Return whether a template reads the content of a role in parts: the text of one comes out, and nothing else of it."""
    probe = [{"type": "text", "text": MARK, SENTINEL: SENTINEL}]
    try:
        text = render([{**m, "content": probe} if m["role"] == role else m for m in messages])
    except Exception:  # whatever a template raises of parts, it does not read them
        return False
    return MARK in text and SENTINEL not in text


def described(value: object) -> str:
    """Return type and value in words, cut to a line."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 80 else text[:77] + '...'}"
