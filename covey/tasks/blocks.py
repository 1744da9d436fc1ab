"""What stands in the tagged block that closes a completion. Plain searches: linear in the text, whatever it holds."""

from __future__ import annotations

from typing import Any

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"


def completion_text(completion: Any) -> str:
    """The text of a completion: itself, or what its messages say."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


def closing_block(completion: Any, tag: str) -> str | None:
    """Inside of `<tag>…</tag>`, when that block is all that follows the reasoning; None otherwise.

    Reasoning is optional; it may begin with `<think>` and ends with `</think>`, once. One block, nothing after it but
    blanks: a completion that lists several answers and hopes is not an answer.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    reasoning, think, after = completion_text(completion).partition(CLOSE_THINK)
    block = (after if think else reasoning).strip()
    if think and OPEN_THINK in reasoning.strip().removeprefix(OPEN_THINK):
        return None
    if not (block.startswith(opening) and block.endswith(closing)):
        return None
    inside = block[len(opening) : -len(closing)].strip()
    return inside if inside and "<" not in inside else None
