"""Reward for answers to reasoning-gym items, scored in the sandbox only.

reasoning-gym's own scoring feeds the model's text to `eval` and to sympy's parser, for some families. Two things stand
before it: answers of those families must be made of harmless characters, and every answer is scored in a locked process
of its own, which ends when its time is up.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from covey.rewards.contract import Failure
from covey.rewards.rules.extract import Source, check_sources, extract, texts_without_echo
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from covey.rewards.sandbox.session import CallFailed, Session
from covey.types import PromptContent

MODULE = "covey.rewards.reasoning_gym_inside"
CODE = f"from {MODULE} import score"
LIMITS = Limits(cpu_seconds=2, wall_seconds=8.0, memory_mb=4_096)
MAX_CHARACTERS = 10_000
FULL_SCORE = 0.99

_ARITHMETIC = re.compile(r"[0-9+\-*/(). ]*", re.ASCII)
_NO_CALLS = re.compile(r"[^().]*", re.DOTALL)
_TRUTH = re.compile(r"\s*(?:true|false)\s*", re.IGNORECASE)
_FORMULA = re.compile(
    r"(?:\s|[0-9+\-*/^(),]|(?<![A-Za-z])\.|\.(?![A-Za-z])|(?<![A-Za-z])"
    r"(?:[A-Za-z]|sin|cos|tan|exp|log|ln|sqrt|asin|acos|atan|sinh|cosh|tanh|sec|csc|cot|pi)(?![A-Za-z_]))*"
)

ALLOWED: dict[str, re.Pattern[str]] = {
    **dict.fromkeys(("countdown", "puzzle24"), _ARITHMETIC),
    **dict.fromkeys(
        ("simple_integration", "intermediate_integration", "polynomial_multiplication"), _FORMULA
    ),
    **dict.fromkeys(("string_insertion", "spiral_matrix", "binary_matrix", "n_queens"), _NO_CALLS),
    "game_of_life_halting": _TRUTH,  # any other text counts as a right answer there
}
"""Patterns that answers must match, by family: those whose scoring evaluates it, or takes anything for right."""


class ReasoningGym:
    """1.0 for a right answer to a reasoning-gym item, else 0.0.

    The rows come from `covey.tasks.reasoning_gym_rows.reasoning_gym_rows`. Needs the package reasoning-gym.

    Args:
        partial: give reasoning-gym's own score instead. Several families pay 0.01 to 0.25 for any text.
        sources: where the answer may stand, see `covey.rewards.rules.extract`.
        sandbox: where answers are scored.

    A row without an item is not applicable: None.
    """

    pure = True

    def __init__(
        self,
        partial: bool = False,
        sources: Sequence[Source] = ("answer", "boxed"),
        sandbox: Sandbox | None = None,
    ) -> None:
        self.partial = partial
        self.sources = check_sources(sources)
        self.sandbox = sandbox or Sandbox(limits=LIMITS, preload=(MODULE,), paths=tuple(sys.path))
        self.__name__ = "reasoning_gym"

    def __call__(
        self,
        completions: Sequence[PromptContent],
        rg_family: Sequence[str | None],
        rg_entry: Sequence[str | None],
        prompts: Sequence[PromptContent] | None = None,
        **_: object,
    ) -> list[float | None]:
        found = [extract(text, self.sources) for text in texts_without_echo(completions, prompts)]
        rows = list(zip(found, rg_family, rg_entry, strict=True))
        if sum(family is not None for family in rg_family) < 2 or self.sandbox.workers < 2:
            return [self._score(*row) for row in rows]
        self.sandbox.start()
        with ThreadPoolExecutor(self.sandbox.workers) as pool:
            return list(pool.map(self._score, *zip(*rows, strict=True)))

    def gold_completion(self, row: Mapping[str, str | None]) -> str | None:
        """Return the item's own answer, for checks; some families have none."""
        answer = json.loads(row.get("rg_entry") or "{}").get("answer")
        return None if answer is None else f"<think>\nI know it.\n</think>\n<answer>{answer}</answer>"

    def _score(self, answer: str | None, family: str | None, entry: str | None) -> float | None:
        if family is None or entry is None:
            return None
        if answer is None or not is_allowed(family, answer):
            return 0.0
        session = Session(self.sandbox.child, CODE)
        try:
            raw = session.call("score", family, answer, entry, seconds=self.sandbox.limits.wall_seconds)
        except CallFailed as failure:
            return Failure(failure.verdict.detail) if failure.verdict.status == "infrastructure" else 0.0
        finally:
            session.close()
        value = raw if isinstance(raw, float) and 0.0 <= raw <= 1.0 else 0.0
        return value if self.partial else float(value >= FULL_SCORE)


def is_allowed(family: str, answer: str) -> bool:
    """Return whether an answer has the characters that its family's answers are made of."""
    pattern = ALLOWED.get(family)
    return len(answer) <= MAX_CHARACTERS and (pattern is None or pattern.fullmatch(answer) is not None)
