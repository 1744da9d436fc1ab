"""What a completion says, as text, whether it came as text or as messages of a chat."""

from __future__ import annotations

from typing import Any

from covey.types import PromptContent

CLOSE_THINK = "</think>"


def text_of(completion: Any) -> str:
    """The text of a completion: itself, or what the assistant's messages say.

    Content that comes in parts, as multimodal chats have it, counts with its text parts.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, dict):
        return _content(completion)
    if isinstance(completion, list | tuple):
        said = [m for m in completion if isinstance(m, dict) and m.get("role", "assistant") == "assistant"]
        return "\n".join(_content(m) for m in said)
    return ""


def last_text_of(prompt: Any) -> str:
    """The last thing that a prompt says: itself, or the content of its last message."""
    if isinstance(prompt, list | tuple):
        return text_of([{**m, "role": "assistant"} for m in prompt[-1:] if isinstance(m, dict)])
    return text_of(prompt)


def without_reasoning(completion: PromptContent) -> PromptContent:
    """The completion after its last `</think>`; whole where there is none."""
    if isinstance(completion, str):
        return completion.rpartition(CLOSE_THINK)[2].lstrip() if CLOSE_THINK in completion else completion
    return [{**m, "content": without_reasoning(_content(m))} if _has_text(m) else m for m in completion]


def _has_text(message: dict[str, Any]) -> bool:
    return isinstance(message.get("content"), str)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(t for t in texts if isinstance(t, str))
    return ""
