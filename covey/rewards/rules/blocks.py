"""The blocks of a completion: `<think>reasoning</think> <answer>answer</answer>`.

Everything here is `str.find`, `count` and `partition`: linear on any input, where a regular expression for the same is
easily quadratic.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blocks:
    """A completion that has exactly the two blocks."""

    reasoning: str
    gap: str
    """Whitespace between the blocks."""
    answer: str
    """Content of the answer block, whitespace around it included."""


def parse_blocks(text: str, think: str = "think", answer: str = "answer") -> Blocks | None:
    """Read a completion that is one reasoning block and one answer block; None where it is anything else.

    The opening tag of the reasoning may stand in the prompt instead. Around and between the blocks there may be
    whitespace. Answer tags inside the reasoning are quotations and do not count; a second `<think>` or `</think>`
    anywhere, a second answer block, or text after it are not this format.
    """
    body = text.strip().removeprefix(f"<{think}>")
    if body.count(f"</{think}>") != 1 or f"<{think}>" in body:
        return None
    reasoning, _, rest = body.partition(f"</{think}>")
    block = rest.lstrip()
    content = _whole_block(block, answer)
    return None if content is None else Blocks(reasoning, rest[: len(rest) - len(block)], content)


def closing_block(text: str, tag: str) -> str | None:
    """Return the content of the block of `tag` that is all that follows the reasoning; None where there is none.

    The reasoning may be missing. A completion that lists several answers and hopes is not an answer.
    """
    if "</think>" not in text:
        return _whole_block(text.strip(), tag)
    blocks = parse_blocks(text, answer=tag)
    return None if blocks is None else blocks.answer


def only_block(text: str, tag: str) -> str | None:
    """Return the content of the only block of `tag` in a text; None where there is none, more than one, or half of one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start, end = text.find(opening) + len(opening), text.find(closing)
    return text[start:end] if start <= end else None


def _whole_block(text: str, tag: str) -> str | None:
    """Return the content of a text that is exactly one block of `tag`, with no such tag inside; None otherwise."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if not (text.startswith(opening) and text.endswith(closing)):
        return None
    content = text[len(opening) : -len(closing)]
    return None if opening in content or closing in content else content
