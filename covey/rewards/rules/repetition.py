"""Punishment for saying the same again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.rewards.text import text_of
from covey.types import PromptContent


class Repetition:
    """`(1 - different / all) × max_penalty` over the n-grams of a completion: 0 where none repeats.

    Token ids where the trainer gives them, else words.

    Args:
        ngram: length of what may repeat.
        max_penalty: what a completion of a single n-gram approaches; negative or 0.
    """

    def __init__(self, ngram: int = 4, max_penalty: float = -1.0) -> None:
        if ngram < 1 or max_penalty > 0:
            raise ValueError(
                f"Repetition(ngram={ngram}, max_penalty={max_penalty}): ngram >= 1, max_penalty <= 0."
            )
        self.ngram, self.max_penalty = ngram, max_penalty
        self.__name__ = "repetition"

    def __call__(
        self,
        completions: Sequence[PromptContent],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **_: Any,
    ) -> list[float]:
        units: Sequence[Sequence[Any]] = completion_ids or [text_of(c).split() for c in completions]
        return [self._score(sequence) for sequence in units]

    def _score(self, units: Sequence[Any]) -> float:
        grams = list(zip(*(units[start:] for start in range(self.ngram)), strict=False))
        return (1 - len(set(grams)) / len(grams)) * self.max_penalty or 0.0 if grams else 0.0
