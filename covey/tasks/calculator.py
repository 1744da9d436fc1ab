"""Calculator: a small story in numbers, too large for the policy's head, and a tool that computes.

    Mia has 37 boxes of 48 pens and gets 12 more pens. How many pens?

The answer is worth a point, and nothing else: whether the policy calls the tool is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from covey.rewards.rules.arithmetic import parse_expression
from covey.rewards.rules.blocks import closing_block
from covey.rewards.text import text_of
from covey.tasks.levels import level_of
from covey.tasks.split import Split, draw_distinct
from covey.types import PromptContent

NAMES = ("Ada", "Ben", "Eva", "Ida", "Leo", "Mia", "Tom", "Zoe")
THINGS = ("apples", "beads", "books", "cards", "nails", "pens", "plums", "stamps")

Form = tuple[str, str]
"""A story and the expression that it asks for, with places for `name`, `things` and the numbers `a`, `b`, `c`."""

BARE: tuple[Form, ...] = (("{name} has {a} boxes of {b} {things}.", "{a}*{b}"),)
MORE: tuple[Form, ...] = (
    ("{name} has {a} boxes of {b} {things} and gets {c} more {things}.", "{a}*{b}+{c}"),
    ("{name} has {a} boxes of {b} {things} and loses {c} {things}.", "{a}*{b}-{c}"),
    ("{name} has {a} boxes and gets {c} more boxes, each of {b} {things}.", "({a}+{c})*{b}"),
)
LEVELS: dict[str, tuple[Form, ...]] = {"easy": BARE, "medium": MORE}
"""Stories with two numbers, and with three."""
QUESTION = " How many {things}?"


def calculator(expression: str) -> str:
    """Compute an expression of whole numbers exactly.

    Args:
        expression: whole numbers with + - * / and parentheses, such as (12+5)*48
    """
    return str(parse_expression(expression).value())


@dataclass(frozen=True, slots=True)
class CalculatorPuzzle:
    """A story, and the expression whose value it asks for."""

    story: str
    solution: str
    form: str

    @property
    def key(self) -> str:
        """Names and things make no other puzzle."""
        return self.solution

    @property
    def value(self) -> int:
        return int(parse_expression(self.solution).value())

    def row(self) -> dict[str, object]:
        """Return the puzzle as a row of a dataset."""
        prompt = [{"role": "user", "content": self.story}]
        return {"prompt": prompt, "task": "calculator", "value": self.value}


def calculator_puzzles(
    count: int, *, seed: int = 0, split: Split = "train", level: str = "medium"
) -> list[CalculatorPuzzle]:
    """Draw `count` different puzzles of one level and one split.

    Raises:
        DatasetError: an unknown level or split, or more puzzles than the level has.
    """
    forms = level_of(LEVELS, level)
    return draw_distinct(lambda rng: draw_puzzle(rng, forms), count, f"calculator {level} {seed}", split)


def calculator_rows(
    count: int, *, seed: int = 0, split: Split = "train", level: str = "medium"
) -> list[dict[str, object]]:
    """Draw rows with `prompt`, `task` and `value`; see `calculator_puzzles`."""
    return [puzzle.row() for puzzle in calculator_puzzles(count, seed=seed, split=split, level=level)]


def calculator_reward(
    completions: Sequence[PromptContent], value: Sequence[int | None], **_: object
) -> list[float | None]:
    """Return 1 where all that the policy said beside its calls is `<answer>` with the value, 0 otherwise, None for rows without a value."""
    return [
        None if wanted is None else float(closing_block(text_of(completion), "answer") == str(wanted))
        for completion, wanted in zip(completions, value, strict=True)
    ]


def _gold_completion(row: Mapping[str, object]) -> str | None:
    """Return the right answer of a row, as the policy would write it."""
    return None if row.get("value") is None else f"<answer>{row['value']}</answer>"


calculator_reward.gold_completion = _gold_completion  # type: ignore[attr-defined]


def draw_puzzle(rng: Random, forms: Sequence[Form]) -> CalculatorPuzzle:
    """Draw one of the forms with a name, a thing and numbers of two digits."""
    story, expression = rng.choice(forms)
    words = {"name": rng.choice(NAMES), "things": rng.choice(THINGS)}
    numbers = {letter: rng.randint(11, 99) for letter in "abc"}
    text = (story + QUESTION).format(**words, **numbers)
    return CalculatorPuzzle(text, expression.format(**numbers), expression)
