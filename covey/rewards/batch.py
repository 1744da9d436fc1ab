"""Input and output of rewards: the batch that is scored, and the table of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any, TypeVar

from covey.metrics import Mean, Metric, merge
from covey.rewards.own import own
from covey.rewards.reserved import is_reserved
from covey.rewards.results import number, shown
from covey.types import Group, PromptContent, Score

T = TypeVar("T")

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
    trainer_state: object = None
    """`transformers.TrainerState` while training, None elsewhere."""

    @classmethod
    def of_groups(cls, groups: Sequence[Group], trainer_state: object = None) -> RewardBatch:
        """Put the completions of whole groups side by side; the columns of a prompt are repeated for each."""
        names = list(dict.fromkeys(name for g in groups for name in g.prompt.columns))
        repeated = [(number, g) for number, g in enumerate(groups) for _ in g.completions]
        return cls(
            prompts=[g.prompt.content for _, g in repeated],
            completions=[content for g in groups for content in g.contents()],
            completion_ids=[list(c.ids) for g in groups for c in g.completions],
            columns={name: [g.prompt.columns.get(name) for _, g in repeated] for name in names},
            group_ids=[number for number, _ in repeated],
            trainer_state=trainer_state,
        )

    def __len__(self) -> int:
        return len(self.completions)

    def select(self, rows: Sequence[int]) -> RewardBatch:
        """Return the batch of the given rows, in that order."""

        def pick(values: list[T]) -> list[T]:
            return [values[i] for i in rows] if values else []

        return RewardBatch(
            prompts=pick(self.prompts),
            completions=pick(self.completions),
            completion_ids=pick(self.completion_ids),
            columns={name: pick(values) for name, values in self.columns.items()},
            group_ids=pick(self.group_ids),
            trainer_state=self.trainer_state,
        )

    def arguments(self, notes: Notes) -> dict[str, object]:
        """Return everything that a reward can ask for, by name."""
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
    """Extras and metrics of rewards beside their scores: columns per sample, numbers per call."""

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

    def log_extra(self, column: str, values: Sequence[object]) -> None:
        """Add a column to the record of completions: one value per completion, None where there is none.

        A column of numbers is also averaged into the metric of the same name, None left out; where that is the name of a
        metric of Covey's, into `extra/<column>`.
        """
        kept = own(list(values))
        if len(kept) != self.size:
            raise ValueError(
                f"log_extra({column!r}, ...) got {len(kept)} values for {self.size} completions; give one each "
                "(None where there is none)."
            )
        self.extras[column] = kept
        numbers = [float(v) for v in kept if isinstance(v, Real | Decimal)]
        if numbers and all(v is None or isinstance(v, Real | Decimal) for v in kept):
            name = f"extra/{column}" if is_reserved(column) else column
            self.metrics = merge(self.metrics, {name: Mean.of(filter(math.isfinite, numbers))})

    def log_metric(self, name: str, value: float) -> None:
        """Add a number to the metric `name`; several values until the next log are averaged, those of other rewards too.

        Raises:
            ValueError: the name is that of a metric of Covey's.
        """
        if is_reserved(name):
            raise ValueError(
                f"log_metric({name!r}, ...): that is the name of a metric that Covey logs itself. Give yours another one, for "
                f"example 'my/{name.rpartition('/')[2]}'."
            )
        try:
            found = number(value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"log_metric({name!r}, ...) got {shown(value)}; give a number.") from None
        self.metrics = merge(self.metrics, {name: Mean.of([found] if math.isfinite(found) else ())})


@dataclass
class CallCounts:
    """Samples that one reward was run for, how many went wrong, and how long it took."""

    num_run: int = 0
    """Samples that the function was asked for, or that the cache answered for."""
    num_cached: int = 0
    """Samples answered without a call: known before, or equal to another one of the batch."""
    num_errors: int = 0
    num_timeouts: int = 0
    num_faults: int = 0
    """Samples that it could not judge: it raised, took too long, or returned a failure."""
    seconds: float = 0.0


@dataclass
class RewardTable:
    """Scores of one batch: one row per completion, one column per reward."""

    scores: dict[str, list[Score]]
    """By reward name; the order is that of the rewards."""
    weights: dict[str, list[float]]
    """By reward name: what its score of each completion is multiplied with."""
    extras: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    """Rewards whose failure drops only themselves, not the sample."""
    counts: dict[str, CallCounts] = field(default_factory=dict)
    """By reward name."""

    def total(self, row: int) -> float | None:
        """Return the weighted sum of one completion; None if nothing scored it or a required reward failed on it.

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
                parts.append(self.weights[name][row] * score.value)
        return sum(parts) if parts else None
