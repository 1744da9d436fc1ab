"""Multiple choice: the letter that a completion settles on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from covey.rewards.rules.against_gold import AgainstGold
from covey.rewards.rules.extract import Source

MAX_CHARACTERS = 500
"""An answer that is longer states more than a letter and its text."""

_NOISE = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s{0,4}\{|[{}$*`_\"']")
_LETTER = re.compile(
    r"(?:(?:option|choice|answer)\s{0,4}:?\s{0,4})?\(?\[?([A-Za-z])(?:[\])]|[.:](?=\s|$)|$)", re.I
)


class MultipleChoice(AgainstGold):
    """1.0 where the completion's answer is the right letter, else 0.0.

    `B`, `(B)`, `B.`, `B) because`, `Option B`, `\\text{B}` and `**B**` are the letter B; several letters are none.

    Args:
        letters: the letters that can be chosen.
        gold: name of the column; by default the first there is of `target`, `answer`, `solution`. It holds a letter, or
            the number of the choice counted from 0.
        sources: where the answer may stand, see `covey.rewards.rules.extract`.

    A gold that is no choice is not applicable (None) and counted in `golds/unreadable_share`.
    """

    def __init__(
        self,
        letters: str = "ABCDE",
        gold: str | None = None,
        sources: Sequence[Source] = ("answer", "boxed", "phrase"),
    ) -> None:
        super().__init__("multiple_choice", gold, sources)
        self.letters = letters.upper()

    def scores(self, golds: Sequence[object], found: Sequence[str | None]) -> list[float | None]:
        scores: list[float | None] = []
        for gold, answer in zip(golds, found, strict=True):
            letter = self._letter(gold) if isinstance(gold, str) else None
            if isinstance(gold, int) and not isinstance(gold, bool) and 0 <= gold < len(self.letters):
                letter = self.letters[gold]
            is_right = answer is not None and self._letter(answer) == letter
            scores.append(None if letter is None else float(is_right))
        return scores

    def _letter(self, text: str) -> str | None:
        """Return the letter that a text starts with, alone or marked as one; None where there is none or a second one."""
        if len(text) > MAX_CHARACTERS:
            return None
        plain = _NOISE.sub("", text).strip()
        match = _LETTER.match(plain)
        if match is None or match[1].upper() not in self.letters:
            return None
        rest = plain[match.end() :]
        others = re.findall(r"(?:^|[\s,(])([A-Z])(?=[\s,).]|$)", rest)
        has_other = set(others) & set(self.letters) - {"A", "I"} or re.search(r"\([A-Za-z]\)", rest)
        return None if has_other else match[1].upper()
