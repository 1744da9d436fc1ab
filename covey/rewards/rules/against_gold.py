"""Rewards that compare a completion's answer with the right one of its row, the gold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from covey.errors import RewardError
from covey.rewards.rules.extract import Source, check_sources, extract, texts_without_echo
from covey.types import PromptContent

USUAL_NAMES = ("target", "answer", "solution")
"""Columns that datasets keep right answers in; the first that is there is taken."""


class AgainstGold(ABC):
    """Reward that finds the golds and the answers of the completions; a subclass compares them.

    A gold that cannot be read is not applicable (None) and counted in `golds/unreadable_share`.

    Args:
        name: of the reward.
        gold: name of the column; by default the first there is of `target`, `answer`, `solution`.
        sources: where the completion's answer may stand, see `covey.rewards.rules.extract`.
    """

    pure = True

    def __init__(self, name: str, gold: str | None, sources: Sequence[Source]) -> None:
        self.__name__ = name
        self.gold = gold
        self.sources = check_sources(sources)

    def missing_columns(self, columns: Iterable[str]) -> list[str]:
        """Return the text for an error where the gold's column is not there; empty where it is."""
        present = set(columns)
        if self.gold is not None:
            return [] if self.gold in present else [repr(self.gold)]
        return [] if present & set(USUAL_NAMES) else [" or ".join(map(repr, USUAL_NAMES))]

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[object],
    ) -> list[float | None]:
        if missing := self.missing_columns(columns):
            raise RewardError(
                f"Reward {self.__name__!r} needs a column with the right answers, {missing[0]}; the batch has "
                f"{', '.join(sorted(columns)) or 'no columns'}. Rename the column, or name it: gold='...'."
            )
        golds = list(next(columns[name] for name in (self.gold, *USUAL_NAMES) if name in columns))
        found = [extract(text, self.sources) for text in texts_without_echo(completions, prompts)]
        scores = self.scores(golds, found)
        # A run whose golds cannot be read trains on nothing, so it has to be seen.
        unreadable = [score is None for gold, score in zip(golds, scores, strict=True) if gold is not None]
        if log_metric is not None and unreadable:
            log_metric("golds/unreadable_share", sum(unreadable) / len(unreadable))
        return scores

    @abstractmethod
    def scores(self, golds: Sequence[object], found: Sequence[str | None]) -> list[float | None]:
        """Return one score per completion; None where, and only where, the gold cannot be read.

        Args:
            golds: right answers as the column holds them.
            found: answers of the completions; None where there is none.
        """
