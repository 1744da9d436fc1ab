"""Exact match with a right answer."""

from __future__ import annotations

from collections.abc import Sequence

from covey.rewards.rules.against_gold import AgainstGold
from covey.rewards.rules.extract import Source


class ExactMatch(AgainstGold):
    """1.0 where the completion's answer is the gold column's text, else 0.0.

    Runs of whitespace count as one space.

    Args:
        gold: name of the column; by default the first there is of `target`, `answer`, `solution`. A list in the column
            holds several right answers.
        sources: where the answer may stand, see `covey.rewards.rules.extract`.
        ignore_case: compare without regard to case.
        ignore_punctuation: leave out everything that is neither letter, digit nor space.

    A blank gold is not applicable (None) and counted in `golds/unreadable_share`.
    """

    def __init__(
        self,
        gold: str | None = None,
        sources: Sequence[Source] = ("answer", "boxed"),
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
    ) -> None:
        super().__init__("exact_match", gold, sources)
        self.ignore_case = ignore_case
        self.ignore_punctuation = ignore_punctuation

    def scores(self, golds: Sequence[object], found: Sequence[str | None]) -> list[float | None]:
        scores: list[float | None] = []
        for gold, answer in zip(golds, found, strict=True):
            listed = gold if isinstance(gold, list | tuple) else [gold]
            options = {self._plain(str(option)) for option in listed if option is not None} - {""}
            is_right = answer is not None and self._plain(answer) in options
            scores.append(float(is_right) if options else None)
        return scores

    def _plain(self, text: str) -> str:
        if self.ignore_punctuation:
            text = "".join(c for c in text if c.isalnum() or c.isspace())
        text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text
