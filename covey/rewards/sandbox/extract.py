"""Code of a completion."""

from __future__ import annotations

from covey.rewards.rules.blocks import only_block
from covey.rewards.rules.extract import after_reasoning

MAX_CHARACTERS = 65_536
"""Longer code is not run."""


def extract_code(text: str) -> str | None:
    """Return the only `<code>` block, or else the last fenced block that is Python or says nothing of its language.

    Only what follows the reasoning counts. None where there is no code, or too much of it.
    """
    after = after_reasoning(text)
    if after is None:
        return None
    block = only_block(after, "code") if "<code>" in after else None
    code = block if block is not None else _last_fence(after)
    return code.strip("\n") if code is not None and code.strip() and len(code) <= MAX_CHARACTERS else None


def _last_fence(text: str) -> str | None:
    """Return the last fenced block that is Python or names no language; None where there is none."""
    parts = text.split(
        "```"
    )  # those at odd places are inside fences, but for the last without a closing fence
    inside = parts[1:-1:2] if len(parts) % 2 else parts[1:-2:2]
    for part in reversed(inside):
        language, newline, body = part.partition("\n")
        if newline and language.strip().lower() in ("python", "py", "python3", ""):
            return body
    return None
