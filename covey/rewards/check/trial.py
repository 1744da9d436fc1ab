"""One reward under test: called as the trainer would, with faults caught and time taken."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace

from covey.errors import RewardError
from covey.rewards.batch import CallCounts, RewardBatch
from covey.rewards.contract import NOT_FINITE, Reward
from covey.rewards.execution.guarded import call_guarded
from covey.rewards.options import Row
from covey.rewards.routing import applicable_rows, groups_of
from covey.types import PromptContent

BEFORE_TRAINING: dict[str, object] = {
    **dict.fromkeys(("epoch", "total_flos", "num_input_tokens_seen", "global_step"), 0),
    **dict.fromkeys(
        ("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size"), 1
    ),
    **dict.fromkeys(
        ("best_metric", "best_model_checkpoint", "best_global_step", "trial_name", "trial_params")
    ),
    **{"is_local_process_zero": True, "is_world_process_zero": True, "is_hyper_param_search": False},
    **{"log_history": [], "stateful_callbacks": {}},
}
"""Fields of `transformers.TrainerState`, as they are before the first step of a run of one step."""

Sample = tuple[Row, PromptContent]
"""A row, and a completion for it."""

ROUNDING = 1e-5
"""Relative and absolute; the arithmetic of a neural reward in float32 differs by about 1e-6 with its batch."""


@dataclass(frozen=True)
class TrialOutcome:
    """Result of a reward for one sample: a number, None (does not apply), or a fault."""

    value: float | None
    fault: str = ""
    is_explained: bool = False
    """Whether the reward itself returned the reason: it did not raise, and left no bare NaN."""

    @property
    def as_text(self) -> str:
        return self.fault or ("does not apply" if self.value is None else f"{self.value:.9g}")

    def agrees(self, other: TrialOutcome) -> bool:
        """Return whether both are the same. A model that pads texts otherwise rounds otherwise, which is no difference."""
        if self.value is None or other.value is None:
            return self.value is other.value and bool(self.fault) == bool(other.fault)
        return math.isclose(self.value, other.value, rel_tol=ROUNDING, abs_tol=ROUNDING)


class Trial:
    """Calls one reward without its gates; a fault is an outcome and stops nothing."""

    def __init__(self, reward: Reward, task_column: str) -> None:
        options = dataclasses.replace(reward.options, on_error="missing", requires=())
        self.reward = dataclasses.replace(reward, options=options)
        self.task_column = task_column

    def applies(self, rows: Sequence[Row]) -> list[bool]:
        """Return whether the routes send rows to it; the reward itself may still return None."""
        kept = set(applicable_rows(self.reward, batch_of([(row, "") for row in rows]), self.task_column))
        return [i in kept for i in range(len(rows))]

    def outcomes(self, samples: Sequence[Sample]) -> list[TrialOutcome]:
        """Return one outcome per sample, of one call for all of them, or for each group."""
        if not samples:
            return []
        batch = batch_of(samples)
        is_by_group = self.reward.options.scope == "group"
        outcomes = [TrialOutcome(None)] * len(batch)
        for rows in groups_of(batch) if is_by_group else [range(len(batch))]:
            counts = CallCounts()
            scores, _ = call_guarded(self.reward, batch.select(rows) if is_by_group else batch, counts)
            has_raised = counts.num_errors + counts.num_timeouts > 0
            for row, score in zip(rows, scores, strict=True):
                reason = (score.error or "failed") if score.status == "failed" else ""
                is_explained = bool(reason) and not has_raised and not reason.endswith(NOT_FINITE)
                outcomes[row] = TrialOutcome(score.value, reason, is_explained)
        return outcomes

    def timed(self, sample: Sample) -> tuple[TrialOutcome, float]:
        """Return the outcome of one sample, and the seconds that it took."""
        started = time.perf_counter()
        (outcome,) = self.outcomes([sample])
        return outcome, time.perf_counter() - started


def batch_of(samples: Sequence[Sample]) -> RewardBatch:
    """Put samples side by side; neighbours with the same row are one group. Bytes stand in for token ids.

    Raises:
        RewardError: a row has no prompt.
    """
    names = list(dict.fromkeys(name for row, _ in samples for name in row if name != "prompt"))
    if any("prompt" not in row for row, _ in samples):
        raise RewardError("A row has no column 'prompt'.")
    is_next = (i > 0 and row is not samples[i - 1][0] for i, (row, _) in enumerate(samples))
    return RewardBatch(
        prompts=[row["prompt"] for row, _ in samples],
        completions=[completion for _, completion in samples],
        completion_ids=[list(str(completion).encode("utf-8", "replace")) for _, completion in samples],
        columns={name: [row.get(name) for row, _ in samples] for name in names},
        group_ids=list(accumulate(map(int, is_next))),
        trainer_state=SimpleNamespace(**copy.deepcopy(BEFORE_TRAINING)),
    )
