"""Countdown: make the target from the numbers, each used exactly once.

Puzzles are drawn backwards: an expression first, then its value as the target. So each has a solution.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from covey.tasks.blocks import closing_block
from covey.tasks.expression import ExpressionError, parse
from covey.tasks.levels import level_of
from covey.tasks.split import Split, draw_distinct

MAX_SEARCHED = 4
"""Numbers that a check still searches a solution for."""


@dataclass(frozen=True, slots=True)
class Level:
    """How hard puzzles are."""

    numbers: int
    """How many numbers are given."""
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

    def row(self) -> dict[str, Any]:
        """The puzzle as a row of a dataset."""
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
    """`count` different puzzles of one level and one split.

    Raises:
        DatasetError: an unknown level or split, or more puzzles than the level has.
    """
    chosen = level_of(LEVELS, level)
    return draw_distinct(lambda rng: draw_puzzle(rng, chosen), count, f"countdown {level} {seed}", split)


def countdown_rows(
    count: int, *, seed: int = 0, split: Split = "train", level: str = "easy"
) -> list[dict[str, Any]]:
    """Rows with `prompt`, `task`, `nums` and `target`; see `countdown_puzzles`."""
    return [puzzle.row() for puzzle in countdown_puzzles(count, seed=seed, split=split, level=level)]


def countdown_reward(
    completions: Sequence[Any], nums: Sequence[Sequence[int] | None], target: Sequence[Any], **_: Any
) -> list[float | None]:
    """1 where `<answer>` holds an expression of exactly the given numbers with the target as its exact value.

    0 for everything else, None for rows without numbers.
    """
    return [
        None if given is None else float(solves(closing_block(completion, "answer"), given, goal))
        for completion, given, goal in zip(completions, nums, target, strict=True)
    ]


def countdown_gold(row: Mapping[str, Any]) -> str | None:
    """A completion that solves a row, for checks; None for a row without numbers, or with too many to search."""
    nums, target = row.get("nums"), row.get("target")
    if not nums or target is None or len(nums) > MAX_SEARCHED:
        return None
    found = next(_reaching([(Fraction(n), str(n)) for n in nums], Fraction(target)), None)
    return None if found is None else f"<answer>{found}</answer>"


countdown_reward.gold_completion = countdown_gold  # type: ignore[attr-defined]


def _reaching(held: Sequence[tuple[Fraction, str]], target: Fraction) -> Iterator[str]:
    """Expressions of all that is held, two combined at a time, with the value `target`."""
    if len(held) == 1:
        if held[0][0] == target:
            yield held[0][1]
        return
    for i, j in itertools.permutations(range(len(held)), 2):
        (a, left), (b, right) = held[i], held[j]
        rest = [part for place, part in enumerate(held) if place not in (i, j)]
        combined = [(a - b, f"({left}-{right})")]
        combined += [(a + b, f"({left}+{right})"), (a * b, f"({left}*{right})")] if i < j else []
        combined += [(a / b, f"({left}/{right})")] if b else []
        for one in combined:
            yield from _reaching([*rest, one], target)


def solves(answer: str | None, nums: Sequence[int], target: Any) -> bool:
    """Whether `answer` is an expression of all `nums`, each once, whose value is `target`."""
    if answer is None:
        return False
    try:
        expression = parse(answer)
        return sorted(expression.numbers) == sorted(nums) and expression.value() == Fraction(target)
    except ExpressionError:
        return False


def draw_puzzle(rng: Random, level: Level) -> CountdownPuzzle:
    """A puzzle of the level, with the expression that it was made from."""
    while True:
        nums = [rng.randint(1, level.largest) for _ in range(level.numbers)]
        text, value = _draw_expression(rng, nums, level.operators)
        if value is not None and value.denominator == 1 and 1 <= value <= level.largest_target:
            return CountdownPuzzle(tuple(rng.sample(nums, len(nums))), int(value), text)


def _draw_expression(rng: Random, nums: list[int], operators: str) -> tuple[str, Fraction | None]:
    """A random expression of all `nums`, and its value; None where it divides by zero."""
    parts = [str(n) for n in nums]
    while len(parts) > 1:
        right = parts.pop(rng.randrange(len(parts)))
        left = parts.pop(rng.randrange(len(parts)))
        joined = f"{left}{rng.choice(operators)}{right}"
        parts.append(f"({joined})" if parts else joined)
    try:
        return parts[0], parse(parts[0]).value()
    except ExpressionError:
        return parts[0], None
