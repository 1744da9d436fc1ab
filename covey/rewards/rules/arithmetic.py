"""Arithmetic on integers, exactly: a parser for `+ - * / ( )` that never calls `eval`.

The grammar, on one line of ASCII:

    sum     = product { ("+" | "-") product }
    product = operand { ("*" | "/") operand }
    operand = [ "-" ] ( integer | name | "(" sum ")" )

Integers have no leading zeros, names are lower-case letters. There is no power, no point, no implied product and no
unary plus.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

MAX_CHARACTERS = 512
MAX_DEPTH = 64

_TOKEN = re.compile(r"[ \t]*(0|[1-9][0-9]*|[a-z]+|[-+*/()])")  # [0-9]: \d has other scripts' digits too
_LEVELS = ("+-", "*/")
"""Binary operators, those that bind loosest first."""
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class ExpressionError(ValueError):
    """The text is no expression, or the expression has no value."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression, not yet computed.

    Its size is bounded by `MAX_CHARACTERS`, and so is the size of its value: without powers a value cannot have more
    digits than the text has.
    """

    postfix: tuple[int | str, ...]
    """Integers, names and operators in the order of a stack machine; `~` negates."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers as written, in order."""
        return tuple(token for token in self.postfix if isinstance(token, int))

    def value(self, names: Mapping[str, int] | None = None) -> Fraction:
        """Compute the exact value; an ExpressionError for a division by zero, or a name that `names` lacks."""
        stack: list[Fraction] = []
        for token in self.postfix:
            if isinstance(token, int):
                stack.append(Fraction(token))
            elif token == "~":
                stack.append(-stack.pop())
            elif token in _OPERATIONS:
                right, left = stack.pop(), stack.pop()
                if token == "/" and right == 0:
                    raise ExpressionError("division by zero")
                stack.append(_OPERATIONS[token](left, right))
            elif names is None or token not in names:
                raise ExpressionError(f"unknown name {token!r}")
            else:
                stack.append(Fraction(names[token]))
        return stack.pop()


def parse_expression(text: str, operators: str = "+-*/") -> Expression:
    """Read a text that is one expression; `operators` are the ones that it may have.

    Raises:
        ExpressionError: the text is anything else, or too long, or too deep.
    """
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"longer than {MAX_CHARACTERS} characters")
    tokens, place = [], 0
    while place < len(text):
        if (match := _TOKEN.match(text, place)) is None:
            raise ExpressionError(f"unexpected {text[place]!r}")
        tokens.append(match[1])
        place = match.end()
    parser = _Parser(["", *reversed(tokens)], operators)
    parser.read(depth=0)
    if parser.tokens[-1]:
        raise ExpressionError(f"{parser.tokens[-1]!r} follows a complete expression")
    return Expression(tuple(parser.postfix))


@dataclass
class _Parser:
    """Recursive descent over tokens; appends to `postfix` as it reads."""

    tokens: list[str]
    """Tokens that are not read yet, the next one last. An empty one marks the end; to read it is always an error."""
    operators: str
    postfix: list[int | str] = field(default_factory=list)

    def read(self, depth: int, level: int = 0) -> None:
        """Read a sum at level 0, a product at level 1, an operand at level 2."""
        if level == len(_LEVELS):
            return self.operand(depth)
        self.read(depth, level + 1)
        while self.tokens[-1] and self.tokens[-1] in _LEVELS[level]:
            sign = self.tokens.pop()
            if sign not in self.operators:
                raise ExpressionError(f"{sign!r} is not allowed")
            self.read(depth, level + 1)
            self.postfix.append(sign)

    def operand(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
        token = self.tokens.pop()
        is_negative = token == "-"
        if is_negative:
            token = self.tokens.pop()
        if token == "(":
            self.read(depth + 1)
            if self.tokens.pop() != ")":
                raise ExpressionError("a parenthesis is not closed")
        elif token.isalnum():
            self.postfix.append(int(token) if token.isdigit() else token)
        else:
            raise ExpressionError(f"expected an operand, found {token or 'the end'!r}")
        if is_negative:
            self.postfix.append("~")
