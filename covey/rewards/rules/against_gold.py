"""Rewards that compare a completion's answer with the right one of its row, the gold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from covey.errors import RewardError
from covey.rewards.rules.extract import Source, answers, check_sources
from covey.types import PromptContent

USUAL_NAMES = ("target", "answer", "solution")
"""Columns that datasets keep right answers in; the first that is there is taken."""


class AgainstGold(ABC):
    """Finds the golds and the answers of the completions; a subclass compares them.

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
        return missing_gold(self.gold, columns)

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[object],
    ) -> list[float | None]:
        missing = self.missing_columns(columns)
        if missing:
            raise RewardError(
                f"Reward {self.__name__!r} needs a column with the right answers, {missing[0]}; the batch has "
                f"{', '.join(sorted(columns)) or 'no columns'}. Rename the column, or name it: gold='...'."
            )
        column = self.gold if self.gold is not None else next(name for name in USUAL_NAMES if name in columns)
        golds = list(columns[column])
        scores = self.scores(golds, answers(completions, prompts, self.sources))
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


def missing_gold(name: str | None, columns: Iterable[str]) -> list[str]:
    """Return the text for an error where the gold's column is not there; empty where it is."""
    present = set(columns)
    if name is not None:
        return [] if name in present else [repr(name)]
    return [] if present & set(USUAL_NAMES) else [" or ".join(map(repr, USUAL_NAMES))]
