"""One reward under test: called as the trainer would, with faults caught and time taken."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import RewardError
from covey.rewards.batch import CallCounts, RewardBatch
from covey.rewards.contract import NOT_FINITE, Reward
from covey.rewards.execution.guarded import call_guarded
from covey.rewards.routing import applicable_rows, groups_of
from covey.types import PromptContent, Score

Sample = tuple[Mapping[str, Any], PromptContent]
"""A row, and a completion for it."""


ROUNDING = 1e-5
"""Relative and absolute; the arithmetic of a neural reward in float32 differs by about 1e-6 with its batch."""


@dataclass(frozen=True)
class Outcome:
    """What a reward said of one sample: a number, None (does not apply), or a fault."""

    value: float | None
    fault: str = ""
    is_explained: bool = False
    """Whether the reward itself says that it failed, and why: it did not raise, and left no bare NaN."""

    @property
    def as_text(self) -> str:
        return self.fault or ("does not apply" if self.value is None else f"{self.value:.9g}")

    def agrees(self, other: Outcome) -> bool:
        """Whether both say the same. A model that pads texts otherwise rounds otherwise, which is no difference."""
        if self.value is None or other.value is None:
            return self.value is other.value and bool(self.fault) == bool(other.fault)
        return math.isclose(self.value, other.value, rel_tol=ROUNDING, abs_tol=ROUNDING)


class Trial:
    """Calls one reward without its gates; a fault is an outcome and stops nothing."""

    def __init__(self, reward: Reward, task_column: str) -> None:
        options = dataclasses.replace(reward.options, on_error="missing", requires=())
        self.reward = dataclasses.replace(reward, options=options)
        self.task_column = task_column

    def applies(self, rows: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Whether the routes send rows to it; the reward itself may still say None."""
        kept = set(applicable_rows(self.reward, batch_of([(row, "") for row in rows]), self.task_column))
        return [i in kept for i in range(len(rows))]

    def outcomes(self, samples: Sequence[Sample]) -> list[Outcome]:
        """One outcome per sample, all in one call."""
        if not samples:
            return []
        batch = batch_of(samples)
        if self.reward.options.scope == "group":
            outcomes = [Outcome(None)] * len(batch)
            for rows in groups_of(batch):
                for row, outcome in zip(rows, self._called(batch.select(rows)), strict=True):
                    outcomes[row] = outcome
            return outcomes
        return self._called(batch)

    def _called(self, batch: RewardBatch) -> list[Outcome]:
        counts = CallCounts()
        scores, _ = call_guarded(self.reward, batch, counts)
        has_raised = counts.num_errors + counts.num_timeouts > 0
        return [_outcome(score, has_raised) for score in scores]

    def timed(self, sample: Sample) -> tuple[Outcome, float]:
        started = time.perf_counter()
        (outcome,) = self.outcomes([sample])
        return outcome, time.perf_counter() - started


def _outcome(score: Score, has_raised: bool) -> Outcome:
    if score.status != "failed":
        return Outcome(score.value)
    reason = score.error or "failed"
    return Outcome(None, reason, not has_raised and not reason.endswith(NOT_FINITE))


def batch_of(samples: Sequence[Sample]) -> RewardBatch:
    """Samples side by side; neighbours with the same row are one group. Bytes stand in for token ids.

    Raises:
        RewardError: a row has no prompt.
    """
    names = list(dict.fromkeys(name for row, _ in samples for name in row if name != "prompt"))
    if any("prompt" not in row for row, _ in samples):
        raise RewardError("A row has no column 'prompt'.")
    group_ids, number = [], 0
    for i, (row, _) in enumerate(samples):
        number += i > 0 and row is not samples[i - 1][0]
        group_ids.append(number)
    return RewardBatch(
        prompts=[row["prompt"] for row, _ in samples],
        completions=[completion for _, completion in samples],
        completion_ids=[list(str(completion).encode("utf-8", "replace")) for _, completion in samples],
        columns={name: [row.get(name) for row, _ in samples] for name in names},
        group_ids=group_ids,
    )
