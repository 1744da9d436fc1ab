"""Completions that should get full marks: made from a row's right answer."""

from __future__ import annotations

from covey.rewards.contract import Reward
from covey.rewards.options import Row
from covey.types import PromptContent

ANSWERS = ("target", "answer", "solution", "gold", "label", "output")
"""Columns that datasets keep right answers in."""
CODE = ("canonical_solution", "reference_code", "code", "solution", "target", "answer")
"""Columns that datasets keep right programs in."""
FORMS = (
    "<think>\nI know it.\n</think>\n<answer>{}</answer>",
    "The answer is \\boxed{{{}}}",
    "The answer is {}",
    "#### {}",
    "{}",
)
"""Ways to write an answer."""
FULL_MARKS = 1.0


def gold_completions(reward: Reward, row: Row) -> list[str]:
    """Return ways to write a row's right answer, one of which should satisfy the reward; none where the row has none.

    A reward that knows better has a method `gold_completion(row)`, which returns text or None.
    """
    own = getattr(reward.function, "gold_completion", None)
    if own is not None:
        text = own(row)
        return [] if text is None else [text]

    values = [row[name] for name in ANSWERS if isinstance(row.get(name), str | int | float)]
    answers = [str(value) for value in values if str(value).strip()]
    final = [answer.rpartition("####")[2].strip() for answer in answers]
    written = [form.format(answer) for answer in dict.fromkeys([*final, *answers]) for form in FORMS]

    programs = [row[name] for name in CODE if isinstance(row.get(name), str) and row[name].strip()]
    start = row["prompt"] if isinstance(row.get("prompt"), str) else ""
    completed = [f"{start}{program}" for program in programs if start and "def " not in program]
    written += [f"```python\n{program}\n```" for program in [*programs, *completed]]
    return list(dict.fromkeys(written))


def like_prompt(prompt: PromptContent, text: str) -> PromptContent:
    """Return a completion in the form of its prompt: text, or a message."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
