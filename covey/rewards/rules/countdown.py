"""Countdown: an arithmetic expression over given numbers that reaches a target."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal

from covey.rewards.rules.arithmetic import ExpressionError, parse_expression
from covey.rewards.rules.blocks import closing_block
from covey.rewards.rules.numbers import exact_number
from covey.rewards.text import text_of
from covey.types import PromptContent

MAX_SEARCHED = 5
"""Numbers that a check still searches a solution for."""

NumbersRule = Literal["subset", "all"]


class Countdown:
    """1.0 for a completion whose answer block is an expression over `nums` with the value `target`, else 0.0.

    The completion is `<think>…</think> <answer>expression</answer>`, the opening tag prefilled or not, or the answer
    block alone; whether it has to think is for a format reward. The expression has integers, `+ - * / ( )`, spaces and
    tabs, nothing else. Values are exact rationals.

    Args:
        rule: `subset` may leave numbers unused; `all` must use each. A number is used at most as often as it is given.

    A row whose `nums` or `target` is missing or is no number is not applicable: None.
    """

    pure = True

    def __init__(self, rule: NumbersRule = "subset") -> None:
        if rule not in ("subset", "all"):
            raise ValueError(f"Countdown(rule={rule!r}): rule is 'subset' or 'all'.")
        self.rule = rule
        self.__name__ = f"countdown_{rule}"

    def __call__(
        self,
        completions: Sequence[PromptContent],
        nums: Sequence[object],
        target: Sequence[object],
        **_: object,
    ) -> list[float | None]:
        scores: list[float | None] = []
        for completion, given, goal in zip(completions, nums, target, strict=True):
            numbers, value = _integers(given), exact_number(goal)
            if numbers is None or value is None:
                scores.append(None)
                continue
            answer = closing_block(text_of(completion), "answer")
            scores.append(float(answer is not None and reaches(answer, numbers, value, self.rule)))
        return scores

    def gold_completion(self, row: Mapping[str, object]) -> str | None:
        """Return a completion that solves a row, for checks; None where there is none, or too many numbers to search."""
        numbers, target = _integers(row.get("nums")), exact_number(row.get("target"))
        if numbers is None or target is None or len(numbers) > MAX_SEARCHED:
            return None
        found = solution(numbers, target, self.rule)
        return None if found is None else f"<think>\nI searched.\n</think>\n<answer>{found}</answer>"


def reaches(answer: str, numbers: Sequence[int], target: Fraction, rule: NumbersRule) -> bool:
    """Return whether an answer is an expression that uses the numbers as the rule says and has the value `target`."""
    try:
        expression = parse_expression(answer)
        # The numbers first: then no more operands are left than were given, and the value is cheap to compute.
        used, given = Counter(expression.numbers), Counter(numbers)
        fits = used == given if rule == "all" else used <= given
        return fits and expression.value() == target
    except ExpressionError:
        return False


def solution(numbers: Sequence[int], target: Fraction, rule: NumbersRule) -> str | None:
    """Search an expression that reaches the target, combining two numbers at a time; None where there is none."""
    seen: set[tuple[Fraction, ...]] = set()
    todo = [[(Fraction(number), str(number)) for number in numbers]]
    while todo:
        held = todo.pop()
        for value, text in held if rule == "subset" or len(held) == 1 else ():
            if value == target:
                return text
        for first, second in itertools.combinations(range(len(held)), 2):
            rest = [part for place, part in enumerate(held) if place not in (first, second)]
            for combined in _combinations(held[first], held[second]):
                state = [*rest, combined]
                key = tuple(sorted(value for value, _ in state))
                if key not in seen:
                    seen.add(key)
                    todo.append(state)
    return None


def _combinations(left: tuple[Fraction, str], right: tuple[Fraction, str]) -> Iterator[tuple[Fraction, str]]:
    (a, one), (b, other) = left, right
    yield a + b, f"({one}+{other})"
    yield a * b, f"({one}*{other})"
    yield a - b, f"({one}-{other})"
    yield b - a, f"({other}-{one})"
    if b:
        yield a / b, f"({one}/{other})"
    if a:
        yield b / a, f"({other}/{one})"


def _integers(given: object) -> list[int] | None:
    """Return the given numbers; None where they are no list of integers. Text and whole floats count as numbers."""
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        return None
    exact = [exact_number(number) for number in given]
    if not exact or any(number is None or number.denominator != 1 for number in exact):
        return None
    return [int(number) for number in exact if number is not None]
