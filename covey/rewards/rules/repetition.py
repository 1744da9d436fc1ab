"""Punishment of repetition."""

from __future__ import annotations

from collections.abc import Sequence

from covey.rewards.text import text_of, written_ids
from covey.types import PromptContent


class Repetition:
    """`(1 - different / all) × max_penalty` over the n-grams of a completion: 0 where none repeats.

    Token ids that the policy wrote where the trainer gives them, else words.

    Args:
        ngram: length of what may repeat.
        max_penalty: limit of the penalty for a completion that repeats one n-gram; negative or 0.
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
        completion_masks: Sequence[Sequence[bool]] | None = None,
        **_: object,
    ) -> list[float]:
        scores = []
        words = [text_of(completion).split() for completion in completions] if not completion_ids else []
        sequences: Sequence[Sequence[object]] = words
        if completion_ids:
            sequences = written_ids(completion_ids, completion_masks)
        for units in sequences:
            grams = list(zip(*(units[start:] for start in range(self.ngram)), strict=False))
            share = 1 - len(set(grams)) / len(grams) if grams else 0.0
            scores.append(share * self.max_penalty or 0.0)  # 0.0 instead of -0.0
        return scores
