"""One reward for one task of a mixture: None for all other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class ForTask:
    """Scores the rows of one task with `reward`, and leaves all others to other rewards.

    The reward sees prompts and completions of its own rows alone, so an expensive model reads nothing in vain.

    Args:
        task: the value of the column `task` that the reward applies to.
        reward: called with `prompts` and `completions`.
    """

    def __init__(self, task: str, reward: Callable[..., Sequence[Any]], name: str | None = None) -> None:
        self.task = task
        self.reward = reward
        self.__name__ = name or f"{task}_reward"

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], task: Sequence[str | None], **_: Any
    ) -> list[Any]:
        """One score per completion; None where the row's task is another one."""
        rows = [row for row, name in enumerate(task) if name == self.task]
        scores: list[Any] = [None] * len(completions)
        if rows:
            own = self.reward(prompts=[prompts[r] for r in rows], completions=[completions[r] for r in rows])
            for row, score in zip(rows, own, strict=True):
                scores[row] = score
        return scores
