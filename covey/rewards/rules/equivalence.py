"""Equivalence of a completion's answer and the right one.

Our own extraction first; then an exact comparison as text and as rationals, which settles most number answers; what is
left goes to math-verify in a worker process that can be killed, since no time limit inside a process holds against a
tower of powers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

from covey.rewards.contract import Failure
from covey.rewards.rules.against_gold import AgainstGold
from covey.rewards.rules.arithmetic import ExpressionError, parse_expression
from covey.rewards.rules.extract import Source, last_boxed
from covey.rewards.rules.numbers import exact_number
from covey.rewards.rules.symbolic import Verdict, compare
from covey.rewards.sandbox.limits import check_can_fork
from covey.types import PromptContent

MAX_CHARACTERS = 2_000
"""Longer answers are no answers."""


class SameAnswer(AgainstGold):
    """1.0 where the completion's answer is equivalent to the right one, else 0.0.

    Numbers are compared exactly: `1/2`, `0.5`, `\\frac{1}{2}` and `2/4` are equal, 0.3333 and 1/3 are not. Words are
    compared as text, without regard to case. Everything else (sets, intervals, equations, roots, units) is compared by
    math-verify.

    Args:
        gold: name of the column; by default the first there is of `target`, `answer`, `solution`.
        sources: where the completion's answer may stand, see `covey.rewards.rules.extract`.
        seconds: processor time per answer that math-verify gets. An answer that takes longer scores 0.
        symbolic: False leaves math-verify out; what only it can compare then scores 0.

    A gold that cannot be read is not applicable (None) and counted in `golds/unreadable_share`. An answer that cannot
    be read scores 0.
    """

    def __init__(
        self,
        gold: str | None = None,
        sources: Sequence[Source] = ("answer", "boxed"),
        seconds: float = 1.0,
        symbolic: bool = True,
    ) -> None:
        super().__init__("same_answer", gold, sources)
        if symbolic:
            check_can_fork("SameAnswer runs math-verify (symbolic=False leaves it out)")
        self.seconds = seconds
        self.symbolic = symbolic

    def scores(self, golds: Sequence[object], found: Sequence[str | None]) -> list[float | None]:
        right = [gold_answer(gold) for gold in golds]
        verdicts = [exact_verdict(gold, answer) for gold, answer in zip(right, found, strict=True)]
        undecided = [i for i, verdict in enumerate(verdicts) if verdict is None] if self.symbolic else []
        pairs = [(plain(right[i] or ""), plain(found[i] or "")) for i in undecided]
        for i, verdict in zip(undecided, compare(pairs, self.seconds), strict=True):
            verdicts[i] = verdict
        worth = {
            "same": 1.0,
            "different": 0.0,
            "unreadable": None,
            "failed": Failure("math-verify's worker could not be started"),
        }
        return [worth[verdict or "different"] for verdict in verdicts]


def exact_verdict(gold: str | None, answer: str | None) -> Verdict | None:
    """Return the verdict where text, words or rationals decide; None where computer algebra has to."""
    plain_gold = plain(gold) if gold is not None else ""
    if not plain_gold:
        return "unreadable"
    plain_answer = plain(answer) if answer is not None and len(answer) <= MAX_CHARACTERS else ""
    if not plain_answer:
        return "different"
    if plain_gold == plain_answer:
        return "same"
    if is_words(plain_gold):
        return "same" if plain_gold.casefold() == plain_answer.casefold() else "different"
    wanted, given = rational(plain_gold), rational(plain_answer)
    if wanted is None or given is None:
        return None
    return "same" if wanted == given else "different"


def gold_answer(gold: object) -> str | None:
    """Return the right answer of a row as text: a number, what follows `####`, the last box, or the whole text."""
    if isinstance(gold, bool) or gold is None:
        return None
    if not isinstance(gold, str):
        number = exact_number(gold)
        return None if number is None else str(number)
    text = gold.rpartition("####")[2].strip()
    boxed = last_boxed(text)
    text = (boxed if boxed is not None else text).strip()
    return text or None


_DROPPED = re.compile(r"\\\$|\\(?:left|right|[,!;:]|displaystyle)(?![A-Za-z])|\\[()\[\]]|\{,\}|\$")
_TIMES = re.compile(r"\\(?:times|cdot)(?![A-Za-z])|[×·]")
_OVER = re.compile(r"\\div(?![A-Za-z])|÷")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s?\{([^{}]*)\}")


def plain(answer: str) -> str:
    """Return an answer without what only concerns its looks."""
    text = _DROPPED.sub("", answer)
    text = _OVER.sub("/", _TIMES.sub("*", text)).replace("−", "-").replace("\\dfrac", "\\frac")
    text = _TEXT.sub(r"\1", text.replace("\\tfrac", "\\frac").replace("**", "^"))
    return " ".join(text.split()).strip("*_`").removesuffix(".").strip()


def rational(text: str) -> Fraction | None:
    """Return the exact value of a number, a fraction, or arithmetic on integers; None for anything else."""
    number = exact_number(text)
    if number is not None:
        return number
    try:
        return parse_expression(_POWER.sub(_power, _SIMPLE_FRACTION.sub(r"((\1\2)/(\3\4))", text))).value()
    except ExpressionError:
        return None


_SIMPLE_FRACTION = re.compile(
    r"\\frac(?:\{(-?[0-9]{1,400})\}|([0-9]))(?:\{(-?[0-9]{1,400})\}|([0-9]))", re.ASCII
)
"""`\\frac{a}{b}` of integers, also `\\frac12`: groups 1 or 2 hold the numerator, 3 or 4 the denominator."""
_POWER = re.compile(r"(?<![0-9.)}])([0-9]{1,6})\^(?:\{(-?[0-9]{1,2})\}|([0-9])(?![0-9]))(?!\^)", re.ASCII)


def _power(match: re.Match[str]) -> str:
    """Return a power of two small integers as its value: at most a million to the 99th, 600 digits."""
    base, exponent = int(match[1]), int(match[2] or match[3])
    return str(base**exponent) if exponent >= 0 else f"(1/{base**-exponent})"


def is_words(text: str) -> bool:
    """Return whether a text is words or a single choice letter; not names that mean a number, and no letter that may be a variable."""
    is_text = re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text) is not None
    return is_text and text.casefold() not in _CONSTANTS and (len(text) > 1 or text in "ABCDEFGH")


_CONSTANTS = frozenset({"pi", "e", "i", "inf", "infinity", "tau"})

_same_answer = cache(SameAnswer)


def math_reward_func(
    completions: Sequence[PromptContent],
    target: Sequence[object] | None = None,
    answer: Sequence[object] | None = None,
    solution: Sequence[object] | None = None,
    prompts: Sequence[PromptContent] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **_: object,
) -> list[float | None]:
    """`SameAnswer()`: 1.0 where the `<answer>` block, or the last box, is equivalent to the right answer.

    The right answers are in the column `target`, `answer` or `solution`, the first that is there.
    """
    columns = {"target": target, "answer": answer, "solution": solution}
    given = {name: column for name, column in columns.items() if column is not None}
    return _same_answer()(completions, prompts, log_metric, **given)


math_reward_func.missing_columns = lambda columns: _same_answer().missing_columns(columns)  # type: ignore[attr-defined]
