"""Conversations that the calculator's policy is pre-trained on.

First by careful authors, who call the tool and copy what it says; then by careless ones, who mostly guess a number instead,
misread the story when they do call, or do not trust the result. A policy that ends by imitating those is right on about one
story in three, and where it is, it called: the state in which GRPO finds what to make more likely.

Every puzzle is of the train split. Some rows have no tools; there is nothing to do there but guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from covey.tasks.calculator import LEVELS, MORE, CalculatorPuzzle, calculator, draw_puzzle
from covey.tasks.split import split_of


@dataclass(frozen=True, slots=True)
class CalculatorAuthor:
    """How somebody works; shares of the stories."""

    calls: float
    """With the tool; the others are guesses."""
    misreads: float
    """Of the calls, with another expression."""
    ignores: float
    """Of the results, answered by a guess."""
    without_tools: float
    """Asked where there is no tool."""


CAREFUL = CalculatorAuthor(calls=0.9, misreads=0.0, ignores=0.0, without_tools=0.05)
CARELESS = CalculatorAuthor(calls=0.5, misreads=0.15, ignores=0.15, without_tools=0.3)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages of a chat, and whether its prompt offers the tool."""

    messages: list[dict[str, object]]
    has_tool: bool
    puzzle: CalculatorPuzzle


def conversations(seed: int, author: CalculatorAuthor = CARELESS) -> Iterator[Conversation]:
    """Yield an endless stream of conversations."""
    rng = Random(f"calculator demonstrations {seed}")
    forms = [form for level in LEVELS.values() for form in level]
    while True:
        puzzle = draw_puzzle(rng, forms)
        if split_of(puzzle.key) == "train":
            has_tool = rng.random() >= author.without_tools
            turns = worked(rng, puzzle, author) if has_tool else [said(guess(rng, puzzle.value))]
            yield Conversation([{"role": "user", "content": puzzle.story}, *turns], has_tool, puzzle)


def worked(rng: Random, puzzle: CalculatorPuzzle, author: CalculatorAuthor) -> list[dict[str, object]]:
    """Write the turns of an author who has the tool."""
    if rng.random() >= author.calls:
        return [said(guess(rng, puzzle.value))]
    expression = misread(rng, puzzle) if rng.random() < author.misreads else puzzle.solution
    result = calculator(expression)
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}
    answer = guess(rng, puzzle.value) if rng.random() < author.ignores else result
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calculator", "content": result},
        said(answer),
    ]


def said(answer: str) -> dict[str, object]:
    return {"role": "assistant", "content": f"<answer>{answer}</answer>"}


def guess(rng: Random, value: int) -> str:
    """Return a number of about the right size."""
    return str(max(1, round(value * rng.uniform(0.8, 1.25))))


def misread(rng: Random, puzzle: CalculatorPuzzle) -> str:
    """Return the expression of another story about the same numbers, or the same with one number changed."""
    numbers = [int(n) for n in puzzle.solution.translate(str.maketrans("()+-*", "     ")).split()]
    if rng.random() < 0.5:
        old = rng.choice(numbers)
        return puzzle.solution.replace(str(old), str(rng.randint(11, 99)))
    letters = [part for part in puzzle.form.replace("}", "{").split("{") if part in ("a", "b", "c")]
    named = {"c": rng.randint(11, 99), **dict(zip(letters, numbers, strict=True))}
    return rng.choice([form for _, form in MORE if form != puzzle.form]).format(**named)
