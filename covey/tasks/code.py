"""Code: write a small function from its description.

    Write f(x): take x, add 3, multiply by 2.      →      <code>def f(x): return (x+3)*2</code>

The language is one line of arithmetic on integers. It is parsed and evaluated here, never executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from covey.rewards.rules.arithmetic import Expression, ExpressionError, parse_expression
from covey.rewards.rules.blocks import closing_block
from covey.rewards.text import text_of
from covey.tasks.levels import level_of
from covey.tasks.split import Split, draw_distinct
from covey.types import PromptContent

HEADER = "def f(x):"
OPERATORS = "+-*"
MAX_DIGITS = 12
"""Of a number in a program."""

PROBES = tuple(range(7))
"""Inputs whose outputs tell any two functions of up to six steps apart: those are polynomials of degree 6 at most."""

NUM_TESTS = 5

LEVELS = {"easy": (2, 2), "medium": (2, 3), "hard": (3, 5)}
"""Fewest and most steps of a function."""


@dataclass(frozen=True, slots=True)
class CodeStep:
    """One operation of a function on its running value."""

    verb: str
    """A key of `VERBS`."""
    operand: int | str
    """An integer, or the argument `x`."""


VERBS = {"add": 12, "subtract": 12, "multiply by": 5, "subtract it from": 20}
"""Operations by name, each with the largest integer that it is drawn with."""


@dataclass(frozen=True, slots=True)
class CodePuzzle:
    """The steps of a function of x, and the inputs that it is tested with."""

    steps: tuple[CodeStep, ...]
    inputs: tuple[int, ...]

    @property
    def key(self) -> tuple[int, ...]:
        """Outputs of the function: two wordings of the same function are the same puzzle."""
        return tuple(self.output(x) for x in PROBES)

    def output(self, x: int) -> int:
        """Compute the function at `x`."""
        value = x
        for step in self.steps:
            operand = x if step.operand == "x" else int(step.operand)
            if step.verb == "add":
                value += operand
            elif step.verb == "subtract":
                value -= operand
            elif step.verb == "multiply by":
                value *= operand
            else:
                value = operand - value
        return value

    @property
    def solution(self) -> str:
        """A correct program."""
        return f"{HEADER} return {render(self.steps)}"

    def row(self) -> dict[str, object]:
        """Return the puzzle as a row of a dataset."""
        wanted = ", ".join(f"{step.verb} {step.operand}" for step in self.steps)
        return {
            "prompt": [{"role": "user", "content": f"Write f(x): take x, {wanted}."}],
            "task": "code",
            "tests": [[x, self.output(x)] for x in self.inputs],
        }


def code_puzzles(
    count: int, *, seed: int = 0, split: Split = "train", level: str = "medium"
) -> list[CodePuzzle]:
    """Draw `count` different functions of one level and one split.

    Raises:
        DatasetError: an unknown level or split, or more functions than the level has.
    """
    fewest, most = level_of(LEVELS, level)
    return draw_distinct(lambda rng: draw_puzzle(rng, fewest, most), count, f"code {level} {seed}", split)


def code_rows(
    count: int, *, seed: int = 0, split: Split = "train", level: str = "medium"
) -> list[dict[str, object]]:
    """Draw rows with `prompt`, `task` and `tests` (pairs of input and output); see `code_puzzles`."""
    return [puzzle.row() for puzzle in code_puzzles(count, seed=seed, split=split, level=level)]


def code_reward(
    completions: Sequence[PromptContent], tests: Sequence[Sequence[Sequence[int]] | None], **_: object
) -> list[float | None]:
    """Return 1 where `<code>` holds a program of the language that passes all tests, 0 otherwise, None for rows without tests."""
    return [
        None if pairs is None else float(passes(closing_block(text_of(completion), "code"), pairs))
        for completion, pairs in zip(completions, tests, strict=True)
    ]


def passes(program: str | None, tests: Sequence[Sequence[int]]) -> bool:
    """Return whether `program` is of the language and gives the expected output for every input."""
    if program is None:
        return False
    try:
        function = parse_program(program)
        return all(function.value({"x": x}) == expected for x, expected in tests)
    except ExpressionError:
        return False


def parse_program(program: str) -> Expression:
    """Read the expression that `def f(x): return <expression>` returns; the body may stand on a line of its own.

    Raises:
        ExpressionError: anything else.
    """
    header, returns, body = program.partition("return")
    if header.rstrip(" \t\n") != HEADER or not returns or body[:1] not in (" ", "("):
        raise ExpressionError(f"a program reads {HEADER!r} return <expression>")
    if body.strip() != body.strip(" \t\n") or body.lstrip(" \t")[:1] == "\n":
        raise ExpressionError("what is returned stands behind `return`, on one line")
    expression = parse_expression(body, OPERATORS)
    if any(number >= 10**MAX_DIGITS for number in expression.numbers):
        raise ExpressionError(f"a number of more than {MAX_DIGITS} digits")
    return expression


def draw_puzzle(rng: Random, fewest: int, most: int) -> CodePuzzle:
    """Draw a function of `fewest` to `most` steps that is not constant."""
    while True:
        steps = []
        for _ in range(rng.randint(fewest, most)):
            verb = rng.choice(tuple(VERBS))
            takes_x = verb != "subtract it from" and rng.random() < 0.15
            least = 2 if verb == "multiply by" else 1
            steps.append(CodeStep(verb, "x" if takes_x else rng.randint(least, VERBS[verb])))
        puzzle = CodePuzzle(tuple(steps), tuple(rng.sample(range(-5, 11), NUM_TESTS)))
        if len(set(puzzle.key)) > 1:
            return puzzle


def render(steps: Sequence[CodeStep]) -> str:
    """Write the steps as one expression with no more parentheses than it needs."""
    text, is_sum = "x", False
    for step in steps:
        operand = f"({text})" if is_sum else text
        if step.verb == "multiply by":
            text, is_sum = f"{operand}*{step.operand}", False
        elif step.verb == "subtract it from":
            text, is_sum = f"{step.operand}-{operand}", True
        else:
            text, is_sum = f"{text}{'+' if step.verb == 'add' else '-'}{step.operand}", True
    return text
