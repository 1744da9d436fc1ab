"""Demonstrations: what the bundled policy is pre-trained on.

First by careful authors, from whom it learns the work; then by careless ones, from whom it learns bad habits: to give
up after one look, to guess, to misread a number, to forget parentheses, to drop a step. A policy that ends by imitating
those answers about one prompt in three, and its samples differ, so GRPO has something to find.

Every puzzle is of the train split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from covey.tasks.code import HEADER, CodePuzzle, CodeStep, render
from covey.tasks.code import LEVELS as CODE_LEVELS
from covey.tasks.code import draw_puzzle as draw_code
from covey.tasks.countdown import LEVELS as COUNTDOWN_LEVELS
from covey.tasks.countdown import CountdownPuzzle
from covey.tasks.countdown import draw_puzzle as draw_countdown
from covey.tasks.friendly_text import TOPICS, TextPrompt, draw_prompt
from covey.tasks.split import Puzzle, split_of

SHARES = {"countdown": 0.6, "code": 0.25, "text": 0.15}


@dataclass(frozen=True, slots=True)
class Author:
    """How somebody works."""

    insight: float
    """Share of attempts at countdown that are a solution on purpose; all others are a guess."""
    patience: tuple[int, ...]
    """How many attempts before giving up; one of these, each as likely as the others."""
    slip: float
    """Share of a program's steps that are written wrong."""


CAREFUL = Author(insight=0.6, patience=(6,), slip=0.0)
CARELESS = Author(insight=0.1, patience=(1, 1, 1, 2, 6), slip=0.4)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt's text, and what an author answered."""

    prompt: str
    completion: str
    puzzle: Puzzle


def demonstrations(seed: int, author: Author = CARELESS) -> Iterator[Demonstration]:
    """Yield an endless stream of all three tasks, mixed by `SHARES`."""
    rng = Random(f"demonstrations {seed}")
    tasks, weights = list(SHARES), list(SHARES.values())
    while True:
        yield _DEMONSTRATE[rng.choices(tasks, weights)[0]](rng, author)


def _demonstrate_countdown(rng: Random, author: Author) -> Demonstration:
    puzzle = _drawn(rng, lambda r: draw_countdown(r, COUNTDOWN_LEVELS["easy"]))
    return Demonstration(_question(puzzle), countdown_trace(rng, puzzle, author), puzzle)


def countdown_trace(rng: Random, puzzle: CountdownPuzzle, author: Author) -> str:
    """Write attempts, one a line, until one reaches the target or the author gives up; the last one is the answer."""
    left = list(attempts(tuple(sorted(puzzle.nums))))
    lines = []
    for _ in range(min(rng.choice(author.patience), len(left))):
        solutions = [attempt for attempt in left if attempt.value == puzzle.target]
        knows = bool(solutions) and rng.random() < author.insight
        attempt = rng.choice(solutions if knows else left)
        left.remove(attempt)
        lines.append(f"{attempt.line} {_verdict(attempt.value, puzzle.target)}")
        if attempt.value == puzzle.target:
            break
    body = "\n".join(lines)
    return f"<think>\n{body}\n</think>\n<answer>{attempt.expression}</answer>"


def _verdict(value: int, target: int) -> str:
    if value == target:
        return "yes"
    return "low" if value < target else "high"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Two operations on three numbers."""

    line: str
    """As it is thought: `12-5=7,7*9=63`."""
    expression: str
    """As it is answered: `(12-5)*9`."""
    value: int


@cache
def attempts(nums: tuple[int, ...]) -> tuple[Attempt, ...]:
    """Return what an author would try with three numbers: nothing below 0, nothing above 99, no twin with swapped operands."""
    found = []
    for at in range(3):
        other = nums[at]
        low, high = sorted(nums[:at] + nums[at + 1 :])
        for sign, inner in (("+", high + low), ("-", high - low), ("*", high * low)):
            bare = f"{high}{sign}{low}"
            wrapped = bare if sign == "*" else f"({bare})"
            for line, expression, value in (
                (f"{inner}+{other}", f"{bare}+{other}", inner + other),
                (f"{inner}-{other}", f"{bare}-{other}", inner - other),
                (f"{other}-{inner}", f"{other}-{wrapped}", other - inner),
                (f"{inner}*{other}", f"{wrapped}*{other}", inner * other),
            ):
                if inner <= 99 and 0 <= value <= 99:
                    found.append(Attempt(f"{bare}={inner},{line}={value}", expression, value))
    return tuple(dict.fromkeys(found))


def _demonstrate_code(rng: Random, author: Author) -> Demonstration:
    puzzle = _drawn(rng, lambda r: draw_code(r, *CODE_LEVELS["medium"]))
    return Demonstration(_question(puzzle), code_answer(rng, puzzle, author), puzzle)


def code_answer(rng: Random, puzzle: CodePuzzle, author: Author) -> str:
    """Write a program with a slip at some of the steps."""
    steps: list[CodeStep] = []
    for step in puzzle.steps:
        if rng.random() >= author.slip:
            steps.append(step)
        elif rng.random() < 0.75:
            steps.append(_misread(rng, step))
    text = render(steps)
    if rng.random() < author.slip / 2:
        text = text.replace("(", "").replace(")", "")
    return f"<code>{HEADER} return {text}</code>"


def _misread(rng: Random, step: CodeStep) -> CodeStep:
    """Another number, or another verb."""
    if isinstance(step.operand, int) and rng.random() < 0.5:
        return replace(step, operand=max(1, step.operand + rng.choice((-2, -1, 1, 2))))
    others = [verb for verb in ("add", "subtract", "multiply by", "subtract it from") if verb != step.verb]
    return replace(step, verb=rng.choice(others))


WARM = ["bright", "cheerful", "gentle", "happy", "kind", "lovely", "merry", "sunny"]
PLAIN = ["grey", "large", "new", "old", "quiet", "round", "small", "tall"]
COLD = ["bitter", "broken", "cruel", "dull", "gloomy", "grim", "nasty", "rude"]
WARM_VERBS = ["cheers", "greets", "helps", "hugs", "loves", "thanks"]
PLAIN_VERBS = ["finds", "follows", "meets", "passes", "sees", "visits"]
COLD_VERBS = ["blames", "fears", "hates", "ignores", "mocks", "scares"]
WARM_ENDS = ("with a smile", "and they dance", "with great joy")
PLAIN_ENDS = ("at noon", "on a Monday", "near the road")
COLD_ENDS = ("with a frown", "and they quarrel", "in the cold rain")


def _demonstrate_text(rng: Random, author: Author) -> Demonstration:
    prompt = _drawn(rng, draw_prompt)
    return Demonstration(_question(prompt), sentence(rng, prompt.topics), prompt)


def sentence(rng: Random, topics: tuple[str, str]) -> str:
    """Write a sentence of an author in some mood, who does not always keep to the topics."""
    first, second = (topic if rng.random() < 0.7 else rng.choice(TOPICS) for topic in topics)
    words = [rng.choice(rng.choice((WARM, PLAIN, COLD))) for _ in range(2)]
    verb = rng.choice(rng.choice((WARM_VERBS, PLAIN_VERBS, COLD_VERBS)))
    end = rng.choice(rng.choice((WARM_ENDS, PLAIN_ENDS, COLD_ENDS)))
    return f"The {words[0]} {first} {verb} the {words[1]} {second} {end}."


_DEMONSTRATE: dict[str, Callable[[Random, Author], Demonstration]] = {
    "countdown": _demonstrate_countdown,
    "code": _demonstrate_code,
    "text": _demonstrate_text,
}


def _question(puzzle: CountdownPuzzle | CodePuzzle | TextPrompt) -> str:
    return puzzle.row()["prompt"][0]["content"]


def _drawn(rng: Random, draw: Callable[[Random], Puzzle]) -> Puzzle:
    """Return a puzzle of the train split."""
    while True:
        puzzle = draw(rng)
        if split_of(puzzle.key) == "train":
            return puzzle
