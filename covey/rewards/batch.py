"""What goes into rewards and what comes out: the batch that is scored, and the table of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.metrics import Mean, Metric, merge
from covey.types import PromptContent, Score

RESERVED = (
    "prompts",
    "completions",
    "completion_ids",
    "group_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
)
"""Names that Covey fills itself; a dataset column of the same name does not reach rewards."""


@dataclass
class RewardBatch:
    """Completions to be scored, side by side; whole groups, siblings next to each other."""

    prompts: list[PromptContent]
    completions: list[PromptContent]
    completion_ids: list[list[int]] = field(default_factory=list)
    """Ids without padding, the ones that are trained on."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """The dataset's other columns, repeated for each completion."""
    group_ids: list[int] = field(default_factory=list)
    """Equal for completions of the same prompt."""
    trainer_state: Any = None
    """`transformers.TrainerState` while training, None elsewhere."""

    def __len__(self) -> int:
        return len(self.completions)

    def select(self, rows: Sequence[int]) -> RewardBatch:
        """The batch of the given rows, in that order."""

        def pick(values: list[Any]) -> list[Any]:
            return [values[i] for i in rows] if values else []

        return RewardBatch(
            prompts=pick(self.prompts),
            completions=pick(self.completions),
            completion_ids=pick(self.completion_ids),
            columns={name: pick(values) for name, values in self.columns.items()},
            group_ids=pick(self.group_ids),
            trainer_state=self.trainer_state,
        )

    def arguments(self, notes: Notes) -> dict[str, Any]:
        """Everything that a reward can ask for, by name."""
        return {
            **self.columns,
            "prompts": self.prompts,
            "completions": self.completions,
            "completion_ids": self.completion_ids,
            "group_ids": self.group_ids,
            "trainer_state": self.trainer_state,
            "log_extra": notes.log_extra,
            "log_metric": notes.log_metric,
        }


class Notes:
    """What rewards note down beside their scores: columns per sample, numbers per call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.extras: dict[str, list[Any]] = {}
        self.metrics: dict[str, Metric] = {}

    def take(self, notes: Notes, rows: Sequence[Sequence[int]]) -> None:
        """Add what was noted of a smaller batch; its sample `i` stands for these `rows[i]`."""
        for column, values in notes.extras.items():
            whole = self.extras.setdefault(column, [None] * self.size)
            for value, places in zip(values, rows, strict=True):
                for place in places:
                    whole[place] = value if value is not None else whole[place]
        self.metrics = merge(self.metrics, notes.metrics)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Add a column to the record of completions: one value per completion, None where there is none.

        A column of numbers is also averaged into the metric of the same name, None left out.
        """
        values = list(values)
        if len(values) != self.size:
            raise ValueError(
                f"log_extra({column!r}, ...) got {len(values)} values for {self.size} completions; give one each "
                "(None where there is none)."
            )
        self.extras[column] = values
        numbers = [float(v) for v in values if isinstance(v, int | float)]
        if numbers and all(v is None or isinstance(v, int | float) for v in values):
            self.metrics = merge(self.metrics, {column: Mean.of(numbers)})

    def log_metric(self, name: str, value: float) -> None:
        """Add a number to the metric `name`; several values until the next log are averaged."""
        self.metrics = merge(self.metrics, {name: Mean(float(value))})


@dataclass
class RewardTable:
    """Scores of one batch: one row per completion, one column per reward."""

    scores: dict[str, list[Score]]
    """By reward name; the order is that of the rewards."""
    weights: dict[str, float]
    extras: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    """Rewards whose failure drops only themselves, not the sample."""
    row_weights: dict[str, list[float]] = field(default_factory=dict)
    """Weights of rewards that weigh rows differently, one per completion; the others have one weight in `weights`."""

    def weight(self, name: str, row: int) -> float:
        """What a reward's score of one completion is multiplied with."""
        return self.row_weights[name][row] if name in self.row_weights else self.weights[name]

    def total(self, row: int) -> float | None:
        """Weighted sum of one completion; None if nothing scored it or a required reward failed on it.

        A gated score counts as 0; one that does not apply drops out.
        """
        parts = []
        for name, column in self.scores.items():
            score = column[row]
            if score.status == "failed" and name not in self.optional:
                return None
            if score.status == "gated":
                parts.append(0.0)
            elif score.value is not None:
                parts.append(self.weight(name, row) * score.value)
        return sum(parts) if parts else None

    def value(self, name: str, row: int) -> float | None:
        """What a reward contributes before its weight: a gated score is 0, None where it has no say."""
        score = self.scores[name][row]
        return 0.0 if score.status == "gated" else score.value
