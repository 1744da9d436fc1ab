"""Hostile completions, which no reward should pay for."""

from __future__ import annotations

from covey.rewards.check.golds import ANSWERS
from covey.rewards.options import Row
from covey.types import message_text

LONG = 100_000
"""Characters of the long ones."""

SHAPE_ONLY = frozenset({"other digits", "power tower", "latex tower"})
"""Well-formed texts with a hostile answer. A reward for the form alone may pay for them."""


def attacks(row: Row) -> dict[str, str]:
    """Return hostile completions by name, for one row."""
    prompt = row.get("prompt", "")
    echo = "\n".join(map(message_text, prompt)) if isinstance(prompt, list | tuple) else prompt
    gold = next((str(row[name]) for name in ANSWERS if isinstance(row.get(name), str | int | float)), "42")
    # Arabic-Indic digits; another number where the answer has no digit, so that it differs.
    translated = gold.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩"))
    other_digits = translated if translated != gold else "٤٢"
    return {
        "empty": "",
        "blank": " \n\t\n ",
        "echo of the prompt": echo,
        "gold 100 times": f"{gold}\n" * 100,
        "boxed gold 100 times": f"\\boxed{{{gold}}} " * 100,
        "tags only": "<think></think>\n<answer></answer>",
        "code tags only": "<code></code>\n```python\n```",
        "long": "word " * (LONG // 5),
        "one long word": "a" * LONG,
        "open tags": "<think>" * (LONG // 7),
        "open brackets": "(" * LONG,
        "open boxes": "\\boxed{" * (LONG // 7),
        "power tower": "<think>\nHm.\n</think>\n<answer>9**9**9**9</answer>",
        "latex tower": "\\boxed{9^{9^{9^{9^{9}}}}}",
        "other digits": f"<think>\nHm.\n</think>\n<answer>{other_digits}</answer>",
        "endless code": "```python\nwhile True:\n    pass\n```",
    }
