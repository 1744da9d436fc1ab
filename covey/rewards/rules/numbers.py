"""Numbers as people write them, read exactly."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from covey.rewards.rules.against_gold import AgainstGold
from covey.rewards.rules.extract import Source

MAX_CHARACTERS = 1_000
"""Longer texts are no number: reading a decimal of n digits takes n² steps."""

_NUMBER = re.compile(
    r"""
    (?P<sign>[+-]?)
    (?P<whole>[0-9]{1,3}(?:,[0-9]{3})+ | [0-9]+)?
    (?:\.(?P<part>[0-9]*))?
    (?:[eE](?P<power>[+-]?[0-9]{1,3}))?
    """,
    re.VERBOSE | re.ASCII,
)


def exact_number(value: object) -> Fraction | None:
    """Return a number or its text as an exact rational; None where it is neither.

    Text may be an integer, a decimal, `a/b` or scientific (`1.5e3`, at most three digits of exponent), also with separators (`1,234`).
    """
    if isinstance(value, bool) or value is None:
        return None
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # numpy scalars and 0-d tensors
        value = value.item()
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if isinstance(value, float | Decimal):
        return Fraction(value) if math.isfinite(value) else None
    text = value.strip().replace("−", "-") if isinstance(value, str) else ""  # the typographic minus
    if not text or len(text) > MAX_CHARACTERS:
        return None
    above, slash, below = text.partition("/")
    if not slash:
        return _decimal(text)
    numerator, denominator = _decimal(above.strip()), _decimal(below.strip())
    return None if numerator is None or not denominator else numerator / denominator


def _decimal(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        return None
    digits = (match["whole"] or "0").replace(",", "")
    part = match["part"] or ""
    value = Fraction(int(digits + part), 10 ** len(part)) * Fraction(10) ** int(match["power"] or 0)
    return -value if match["sign"] == "-" else value


class NumberMatch(AgainstGold):
    """1.0 where the number in the completion is the one in the gold column, else 0.0.

    Args:
        gold: name of the column; by default the first there is of `target`, `answer`, `solution`.
        sources: where the completion's answer may stand, see `covey.rewards.rules.extract`.
        rel: relative tolerance; 0 compares exact rationals.
        abs: absolute tolerance.

    A gold that is no number is not applicable (None) and counted in `golds/unreadable_share`.
    """

    def __init__(
        self,
        gold: str | None = None,
        sources: Sequence[Source] = ("answer", "boxed", "hash"),
        rel: float = 0.0,
        abs: float = 0.0,
    ) -> None:
        super().__init__("number_match", gold, sources)
        self.rel, self.abs = Fraction(rel), Fraction(abs)

    def scores(self, golds: Sequence[object], found: Sequence[str | None]) -> list[float | None]:
        scores: list[float | None] = []
        for value, answer in zip(golds, found, strict=True):
            gold, number = exact_number(value), exact_number(answer)
            if gold is None or number is None:
                scores.append(None if gold is None else 0.0)
                continue
            scores.append(float(abs(number - gold) <= max(self.abs, self.rel * abs(gold))))
        return scores
