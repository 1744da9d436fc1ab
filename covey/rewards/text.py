"""Text of prompts and completions, whether they came as text or as messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence

from covey.types import PromptContent, message_text

CLOSE_THINK = "</think>"


def text_of(completion: object) -> str:
    """Return the text of a completion: itself, or that of the assistant's messages.

    Content that comes in parts, as multimodal chats have it, counts with its text parts. What is neither text nor
    messages has the empty text.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, dict):
        return message_text(completion)
    if isinstance(completion, list | tuple):
        messages = (m for m in completion if isinstance(m, dict))
        return "\n".join(message_text(m) for m in messages if m.get("role", "assistant") == "assistant")
    return ""


def written_ids(
    completion_ids: Sequence[Sequence[int]], completion_masks: Sequence[Sequence[bool]] | None
) -> list[list[int]]:
    """Return the ids that the policy wrote: without what tools answered. Where there are no masks it wrote all of them."""
    if completion_masks is None:
        return [list(ids) for ids in completion_ids]
    pairs = zip(completion_ids, completion_masks, strict=True)
    return [[i for i, is_written in zip(ids, mask, strict=True) if is_written] for ids, mask in pairs]


def last_text_of(prompt: object) -> str:
    """Return the end of a prompt: itself, or the text of its last message."""
    if isinstance(prompt, list | tuple):
        return text_of(prompt[-1]) if prompt and isinstance(prompt[-1], dict) else ""
    return text_of(prompt)


def without_reasoning(completion: PromptContent) -> PromptContent:
    """Return the completion after its last `</think>`; whole where there is none."""
    if isinstance(completion, str):
        return completion.rpartition(CLOSE_THINK)[2].lstrip() if CLOSE_THINK in completion else completion
    return [
        {**m, "content": without_reasoning(m["content"])} if isinstance(m.get("content"), str) else m
        for m in completion
    ]
