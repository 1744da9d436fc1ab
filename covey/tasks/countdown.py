"""Countdown: make the target from the numbers, each used exactly once.

Puzzles are drawn backwards: an expression first, then its value as the target. So each has a solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from covey.rewards.rules.arithmetic import ExpressionError, parse_expression
from covey.rewards.rules.countdown import Countdown
from covey.tasks.levels import level_of
from covey.tasks.split import Split, draw_distinct
from covey.types import PromptContent


@dataclass(frozen=True, slots=True)
class Level:
    """Difficulty of puzzles."""

    numbers: int
    """Count of the numbers that are given."""
    largest: int
    """Numbers are from 1 to this."""
    operators: str
    """Operators that the solution is drawn from."""
    largest_target: int = 99
    """Targets are from 1 to this."""


LEVELS = {
    "easy": Level(numbers=3, largest=12, operators="+-*"),
    "medium": Level(numbers=3, largest=20, operators="+-*/"),
    "hard": Level(numbers=4, largest=25, operators="+-*/", largest_target=200),
}


@dataclass(frozen=True, slots=True)
class CountdownPuzzle:
    """Numbers, a target, and one expression that reaches it."""

    nums: tuple[int, ...]
    target: int
    solution: str

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """The order of the numbers makes no other puzzle."""
        return tuple(sorted(self.nums)), self.target

    def row(self) -> dict[str, object]:
        """Return the puzzle as a row of a dataset."""
        listed = ", ".join(map(str, self.nums))
        return {
            "prompt": [{"role": "user", "content": f"Make {self.target} from {listed}."}],
            "task": "countdown",
            "nums": list(self.nums),
            "target": self.target,
        }


def countdown_puzzles(
    count: int, *, seed: int = 0, split: Split = "train", level: str = "easy"
) -> list[CountdownPuzzle]:
    """Draw `count` different puzzles of one level and one split.

    Raises:
        DatasetError: an unknown level or split, or more puzzles than the level has.
    """
    chosen = level_of(LEVELS, level)
    return draw_distinct(lambda rng: draw_puzzle(rng, chosen), count, f"countdown {level} {seed}", split)


def countdown_rows(
    count: int, *, seed: int = 0, split: Split = "train", level: str = "easy"
) -> list[dict[str, object]]:
    """Draw rows with `prompt`, `task`, `nums` and `target`; see `countdown_puzzles`."""
    return [puzzle.row() for puzzle in countdown_puzzles(count, seed=seed, split=split, level=level)]


_all_numbers = Countdown("all")


def countdown_reward(
    completions: Sequence[PromptContent], nums: Sequence[object], target: Sequence[object], **_: object
) -> list[float | None]:
    """`Countdown("all")`: 1 where `<answer>` holds an expression of exactly the given numbers with the value `target`.

    0 for everything else, None for rows without numbers.
    """
    return _all_numbers(completions, nums, target)


countdown_reward.gold_completion = _all_numbers.gold_completion  # type: ignore[attr-defined]


def draw_puzzle(rng: Random, level: Level) -> CountdownPuzzle:
    """Draw a puzzle of the level, with the expression that it was made from."""
    while True:
        nums = [rng.randint(1, level.largest) for _ in range(level.numbers)]
        text, value = _draw_expression(rng, nums, level.operators)
        if value is not None and value.denominator == 1 and 1 <= value <= level.largest_target:
            return CountdownPuzzle(tuple(rng.sample(nums, len(nums))), int(value), text)


def _draw_expression(rng: Random, nums: list[int], operators: str) -> tuple[str, Fraction | None]:
    """Draw a random expression of all `nums`, and its value; None where it divides by zero."""
    parts = [str(n) for n in nums]
    while len(parts) > 1:
        right = parts.pop(rng.randrange(len(parts)))
        left = parts.pop(rng.randrange(len(parts)))
        joined = f"{left}{rng.choice(operators)}{right}"
        parts.append(f"({joined})" if parts else joined)
    try:
        return parts[0], parse_expression(parts[0]).value()
    except ExpressionError:
        return parts[0], None
