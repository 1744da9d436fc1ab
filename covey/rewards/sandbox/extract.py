"""Code of a completion."""

from __future__ import annotations

from covey.rewards.rules.blocks import only_block
from covey.rewards.rules.extract import after_reasoning

MAX_CHARACTERS = 65_536
"""Longer code is not run."""
LANGUAGES = ("python", "py", "python3", "")
"""First line of a fence whose code is taken."""


def extract_code(text: str) -> str | None:
    """Return the only `<code>` block, or else the last fenced block that is Python or says nothing of its language.

    Only what follows the reasoning counts. None where there is no code, or too much of it.
    """
    after = after_reasoning(text)
    if after is None:
        return None
    code = only_block(after, "code") if "<code>" in after else None
    if code is None:
        # Parts at odd places are inside fences, but for a last one that no fence closes.
        fences = (part.partition("\n") for part in reversed(after.split("```")[1:-1:2]))
        code = next(
            (body for language, newline, body in fences if newline and language.strip().lower() in LANGUAGES),
            None,
        )
    return code.strip("\n") if code is not None and code.strip() and len(code) <= MAX_CHARACTERS else None
