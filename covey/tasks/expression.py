"""A hand-written parser of arithmetic: integers, names, + - * / and parentheses, exact values, nothing else.

    sum      = product (("+" | "-") product)*
    product  = factor (("*" | "/") factor)*
    factor   = "-" factor | number | name | "(" sum ")"

Only ASCII; blanks are spaces and tabs; a number has no leading zero. Never `eval`. Text, depth and digits are limited
before anything is computed, so time is linear in what is read and values stay small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

MAX_CHARS = 1_000
MAX_DEPTH = 64
MAX_DIGITS = 12

_TOKEN = re.compile(r"[ \t]*(?:(?P<number>0|[1-9][0-9]*)|(?P<name>[a-z]+)|(?P<sign>[-+*/()]))")


class ExpressionError(ValueError):
    """The text is not an expression of this language, or has no value."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: its operations in postfix order, and the operands as they are written."""

    steps: tuple[int | str, ...]
    """Postfix: integers, names, and the operators `+ - * /` and `neg`."""
    numbers: tuple[int, ...]
    """Every integer literal, in the order of the text."""

    def value(self, names: Mapping[str, int] | None = None) -> Fraction:
        """The exact value.

        Raises:
            ExpressionError: division by zero, or a name that `names` lacks.
        """
        stack: list[Fraction] = []
        for step in self.steps:
            if isinstance(step, int):
                stack.append(Fraction(step))
            elif step == "neg":
                stack.append(-stack.pop())
            elif step in "+-*/":
                right, left = stack.pop(), stack.pop()
                stack.append(_apply(step, left, right))
            elif names is None or step not in names:
                raise ExpressionError(f"unknown name {step!r}")
            else:
                stack.append(Fraction(names[step]))
        return stack.pop()


def parse(text: str, *, operators: str = "+-*/") -> Expression:
    """Parse `text` as a whole; `operators` are the ones that are allowed.

    Raises:
        ExpressionError: anything that is not an expression of the language, or is too long or too deep.
    """
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"longer than {MAX_CHARS} characters")
    parser = _Parser(list(_tokens(text)), operators)
    parser.sum(0)
    if parser.peek():
        raise ExpressionError(f"{parser.peek()!r} follows a complete expression")
    return Expression(tuple(parser.steps), tuple(parser.numbers))


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if right == 0:
        raise ExpressionError("division by zero")
    return left / right


def _tokens(text: str) -> Iterator[str]:
    text, position = text.rstrip(" \t"), 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionError(f"unexpected {text[position]!r}")
        position = match.end()
        yield match[0].lstrip(" \t")


@dataclass
class _Parser:
    """Recursive descent; each method reads one rule and appends its postfix steps."""

    tokens: list[str]
    operators: str
    position: int = 0
    steps: list[int | str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def sum(self, depth: int) -> None:
        self._chain("+-", depth)

    def _chain(self, level: Literal["+-", "*/"], depth: int) -> None:
        operand = self._product if level == "+-" else self._factor
        operand(depth)
        while self.peek() and self.peek() in level:
            operator = self.next()
            if operator not in self.operators:
                raise ExpressionError(f"{operator!r} is not allowed")
            operand(depth)
            self.steps.append(operator)

    def _product(self, depth: int) -> None:
        self._chain("*/", depth)

    def _factor(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
        token = self.next()
        if token == "-":
            self._factor(depth + 1)
            self.steps.append("neg")
        elif token == "(":
            self.sum(depth + 1)
            if self.next() != ")":
                raise ExpressionError("a parenthesis is not closed")
        elif token.isdigit():
            self._number(token)
        elif token.isalpha():
            self.steps.append(token)
        else:
            raise ExpressionError(f"expected an operand, found {token or 'the end'!r}")

    def _number(self, token: str) -> None:
        if len(token) > MAX_DIGITS:
            raise ExpressionError(f"a number of more than {MAX_DIGITS} digits")
        self.numbers.append(int(token))
        self.steps.append(int(token))
