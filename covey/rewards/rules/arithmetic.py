"""Arithmetic on integers, exactly: a parser for `+ - * / ( )` that never calls `eval`.

The grammar, on one line of ASCII:

    sum     = product { ("+" | "-") product }
    product = operand { ("*" | "/") operand }
    operand = [ "-" ] ( integer | "(" sum ")" )

Integers have no leading zeros. There is no power, no point, no implied product and no unary plus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 512
MAX_DEPTH = 64

Token = int | str


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression, not yet computed.

    Its size is bounded by `MAX_CHARACTERS`, and so is the size of its value: without powers a value cannot have more
    digits than the text has.
    """

    postfix: tuple[Token, ...]
    """Operands and operators in the order of a stack machine; `~` negates."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers as written, in order."""
        return tuple(token for token in self.postfix if isinstance(token, int))

    def value(self) -> Fraction | None:
        """The exact value; None where something is divided by zero."""
        stack: list[Fraction] = []
        for token in self.postfix:
            if isinstance(token, int):
                stack.append(Fraction(token))
            elif token == "~":
                stack.append(-stack.pop())
            else:
                right, left = stack.pop(), stack.pop()
                if token == "/" and right == 0:
                    return None
                stack.append(_OPERATIONS[token](left, right))
        return stack.pop()


_OPERATIONS = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}


def parse_expression(text: str) -> Expression | None:
    """Read an expression; None where the text is not exactly one."""
    text = text.strip()
    if not text or len(text) > MAX_CHARACTERS:
        return None
    try:
        parser = _Parser(_tokens(text))
        parser.sum(depth=0)
    except _NotArithmetic:
        return None
    return Expression(tuple(parser.postfix)) if parser.at_end() else None


class _NotArithmetic(Exception):
    pass


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    place = 0
    while place < len(text):
        character = text[place]
        if character in "+-*/()":
            tokens.append(character)
        elif "0" <= character <= "9":  # str.isdigit would take other scripts' digits
            end = place + 1
            while end < len(text) and "0" <= text[end] <= "9":
                end += 1
            if character == "0" and end > place + 1:
                raise _NotArithmetic
            tokens.append(int(text[place:end]))
            place = end
            continue
        elif character not in " \t":
            raise _NotArithmetic
        place += 1
    return tokens


class _Parser:
    """Recursive descent over tokens; appends to `postfix` as it reads."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.place = 0
        self.postfix: list[Token] = []

    def at_end(self) -> bool:
        return self.place == len(self.tokens)

    def sum(self, depth: int) -> None:
        self._chain(("+", "-"), self._product, depth)

    def _product(self, depth: int) -> None:
        self._chain(("*", "/"), self._operand, depth)

    def _chain(self, operators: tuple[str, str], part: Callable[[int], None], depth: int) -> None:
        part(depth)
        while self._peek() in operators:
            operator = self._take()
            part(depth)
            self.postfix.append(operator)

    def _operand(self, depth: int) -> None:
        negative = self._peek() == "-"
        if negative:
            self._take()
        token = self._take()
        if isinstance(token, int):
            self.postfix.append(token)
        elif token == "(" and depth < MAX_DEPTH:
            self.sum(depth + 1)
            if self._take() != ")":
                raise _NotArithmetic
        else:
            raise _NotArithmetic
        if negative:
            self.postfix.append("~")

    def _peek(self) -> Token | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def _take(self) -> Token:
        token = self._peek()
        if token is None:
            raise _NotArithmetic
        self.place += 1
        return token
