"""Rewards for length. They punish or scale; none pays for text by itself. What tools answered is no part of a length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from covey.rewards.contract import Failure, Reward
from covey.rewards.text import text_of, written_ids
from covey.types import PromptContent


class SoftOverlong:
    """Soft overlong punishment (DAPO, arXiv:2503.14476, eq. 13), in tokens.

    0 up to `max_length - cache`, then linearly down to -1 at `max_length`, and -1 beyond.

    Args:
        max_length: longest completion, in tokens.
        cache: width of the slope before it, in tokens; 0: no slope.
    """

    def __init__(self, max_length: int, cache: int) -> None:
        if not 0 <= cache <= max_length or max_length < 1:
            raise ValueError(
                f"SoftOverlong(max_length={max_length}, cache={cache}): 0 <= cache <= max_length, 1 <= max_length."
            )
        self.max_length, self.cache = max_length, cache
        self.__name__ = "soft_overlong"

    def __call__(
        self,
        completion_ids: Sequence[Sequence[int]],
        completion_masks: Sequence[Sequence[bool]] | None = None,
        **_: object,
    ) -> list[float]:
        own = written_ids(completion_ids, completion_masks)
        excesses = [len(ids) - (self.max_length - self.cache) for ids in own]
        # Over a slope of 0 tokens the first token too many costs 1, as the second half of equation 13 has it.
        return [-min(max(excess / max(self.cache, 1), 0.0), 1.0) or 0.0 for excess in excesses]


class LengthBudget:
    """0.0 within a budget of tokens, then linearly down to -1.0 at twice the budget, and -1.0 beyond.

    Args:
        budget: tokens, or the name of the column that holds them, row by row.

    A row without a budget is not applicable: None.
    """

    def __init__(self, budget: int | str) -> None:
        if not isinstance(budget, str) and budget <= 0:
            raise ValueError(
                f"LengthBudget(budget={budget}): a budget is at least 1 token, or a column's name."
            )
        self.budget = budget
        self.__name__ = "length_budget"

    def missing_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the name of the budget's column where it is not there."""
        return [self.budget] if isinstance(self.budget, str) and self.budget not in columns else []

    def __call__(
        self,
        completion_ids: Sequence[Sequence[int]],
        completion_masks: Sequence[Sequence[bool]] | None = None,
        **columns: Sequence[object],
    ) -> list[float | None]:
        budgets: Sequence[object] = [self.budget] * len(completion_ids)
        if isinstance(self.budget, str):
            budgets = columns[self.budget]
        scores: list[float | None] = []
        for ids, budget in zip(written_ids(completion_ids, completion_masks), budgets, strict=True):
            if not isinstance(budget, int | float) or budget <= 0:
                scores.append(None)
                continue
            scores.append(-min(max(len(ids) / budget - 1, 0.0), 1.0) or 0.0)
        return scores


class CosineLength:
    """A correctness reward, scaled by length along a half cosine (arXiv:2502.03373, eq. 1).

    A right answer is worth `right[0]` at length 0 and falls to `right[1]` at `max_length`; a wrong one goes from
    `wrong[0]` to `wrong[1]`, so that a wrong answer pays less the shorter it is. Longer than `max_length` counts as
    `max_length`.

    Args:
        accuracy: the reward that tells right from wrong; right is at least `threshold`.
        max_length: in tokens where the trainer gives them, else in characters.

    Where `accuracy` does not apply, or failed, so does this.
    """

    def __init__(
        self,
        accuracy: Callable[..., object],
        max_length: int,
        right: tuple[float, float] = (1.0, 0.5),
        wrong: tuple[float, float] = (-1.0, -0.5),
        threshold: float = 1.0,
    ) -> None:
        if max_length <= 0:
            raise ValueError(f"CosineLength(max_length={max_length}): a length is at least 1.")
        self.accuracy = Reward(accuracy, getattr(accuracy, "__name__", "accuracy"))
        self.max_length = max_length
        self.right, self.wrong = right, wrong
        self.threshold = threshold
        self.__name__ = f"cosine_{self.accuracy.name}"

    def missing_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that the correctness reward lacks."""
        return self.accuracy.missing_columns(columns)

    def __call__(
        self,
        completions: Sequence[PromptContent],
        completion_ids: Sequence[Sequence[int]] | None = None,
        completion_masks: Sequence[Sequence[bool]] | None = None,
        **columns: object,
    ) -> list[float | None]:
        everything = {**columns, "completions": completions, "completion_ids": completion_ids}
        everything["completion_masks"] = completion_masks
        own = written_ids(completion_ids, completion_masks) if completion_ids else map(text_of, completions)
        lengths = [len(units) for units in own]
        scores = self.accuracy.scores(self.accuracy(**everything), len(completions))
        values: list[float | None] = []
        for score, length in zip(scores, lengths, strict=True):
            if score.status == "failed":
                values.append(Failure(score.error or "failed"))
            elif score.value is None:
                values.append(None)
            else:
                start, end = self.right if score.value >= self.threshold else self.wrong
                share = min(length / self.max_length, 1.0)
                values.append(end + 0.5 * (start - end) * (1 + math.cos(share * math.pi)))
        return values
