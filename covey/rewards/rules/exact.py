"""Exact match with a right answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from covey.groups import PromptContent
from covey.rewards.rules.extract import Source, answers, check_sources
from covey.rewards.rules.gold import golds, missing_gold, note_unreadable


class ExactMatch:
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

    pure = True

    def __init__(
        self,
        gold: str | None = None,
        sources: Sequence[Source] = ("answer", "boxed"),
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
    ) -> None:
        self.gold = gold
        self.sources = check_sources(sources)
        self.ignore_case = ignore_case
        self.ignore_punctuation = ignore_punctuation
        self.__name__ = "exact_match"

    def missing_columns(self, columns: Sequence[str]) -> list[str]:
        return missing_gold(self.gold, columns)

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        given = golds(self.gold, columns, self.__name__)
        wanted = [self._options(gold) for gold in given]
        note_unreadable(given, wanted, log_metric)
        found = answers(completions, prompts, self.sources)
        return [
            None if options is None else float(answer is not None and self._plain(answer) in options)
            for answer, options in zip(found, wanted, strict=True)
        ]

    def _options(self, gold: Any) -> set[str] | None:
        listed = gold if isinstance(gold, list | tuple) else [gold]
        options = {self._plain(str(option)) for option in listed if option is not None} - {""}
        return options or None

    def _plain(self, text: str) -> str:
        if self.ignore_punctuation:
            text = "".join(c for c in text if c.isalnum() or c.isspace())
        text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text
