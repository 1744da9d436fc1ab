"""Rewards that hold a completion's answer against the right one of its row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from covey.rewards.rules.extract import Source, answers, check_sources
from covey.rewards.rules.gold import golds, missing_gold, note_unreadable
from covey.types import PromptContent


class AgainstGold(ABC):
    """Finds the right answers and those of the completions; a subclass compares them.

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
        scores = self._scores(given, answers(completions, prompts, self.sources))
        note_unreadable(given, scores, log_metric)
        return scores

    @abstractmethod
    def _scores(self, given: Sequence[Any], found: Sequence[str | None]) -> list[float | None]:
        """One score per completion; None where, and only where, the gold cannot be read.

        Args:
            given: golds as the column holds them.
            found: answers of the completions; None where there is none.
        """
