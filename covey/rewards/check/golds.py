"""Completions that should get full marks: made from a row's right answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.rewards.contract import Reward
from covey.types import PromptContent

ANSWERS = ("target", "answer", "solution", "gold", "label", "output")
"""Columns that datasets keep right answers in."""
CODE = ("canonical_solution", "reference_code", "code", "solution", "target", "answer")
"""Columns that datasets keep right programs in."""
FULL_MARKS = 1.0


def gold_completions(reward: Reward, row: Mapping[str, Any]) -> list[str]:
    """Ways to write a row's right answer, one of which should satisfy the reward; empty where the row has none.

    A reward that knows better has a method `gold_completion(row)` → text or None.
    """
    knows = getattr(reward.function, "gold_completion", None)
    if knows is not None:
        text = knows(row)
        return [] if text is None else [text]
    return list(dict.fromkeys([*_as_answers(row), *_as_code(row)]))


def _as_answers(row: Mapping[str, Any]) -> list[str]:
    texts = [
        str(row[name])
        for name in ANSWERS
        if isinstance(row.get(name), str | int | float) and str(row[name]).strip()
    ]
    forms = (
        "<think>\nI know it.\n</think>\n<answer>{}</answer>",
        "The answer is \\boxed{{{}}}",
        "The answer is {}",
        "#### {}",
        "{}",
    )
    final = [text.rpartition("####")[2].strip() for text in texts]
    return [form.format(text) for text in dict.fromkeys([*final, *texts]) for form in forms]


def _as_code(row: Mapping[str, Any]) -> list[str]:
    texts = [row[name] for name in CODE if isinstance(row.get(name), str) and row[name].strip()]
    start = row.get("prompt") if isinstance(row.get("prompt"), str) else ""
    bodies = [*texts, *(f"{start}{text}" for text in texts if start and "def " not in text)]
    return [f"```python\n{body}\n```" for body in bodies]


def like_prompt(prompt: PromptContent, text: str) -> PromptContent:
    """A completion in the form of its prompt: text, or a message."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
