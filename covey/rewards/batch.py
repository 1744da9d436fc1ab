"""Input and output of rewards: the batch that is scored, and the table of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Real
from typing import Any, TypeVar

from covey.metrics import Mean, Metric, merge
from covey.rewards.own import own
from covey.rewards.reserved import is_reserved
from covey.rewards.results import number, shown
from covey.types import Group, Prompt, PromptContent, Score
from covey.vision.album import Album

T = TypeVar("T")

RESERVED = (
    "prompts",
    "completions",
    "completion_ids",
    "completion_masks",
    "group_ids",
    "image_sizes",
    "trainer_state",
    "log_extra",
    "log_metric",
)
"""Names that Covey fills itself; a dataset column of the same name does not reach rewards."""
ON_REQUEST = ("image_sizes",)
"""Those that only a reward gets whose signature names them."""


@dataclass
class RewardBatch:
    """Completions to be scored, side by side; whole groups, siblings next to each other."""

    prompts: list[PromptContent]
    completions: list[PromptContent]
    completion_ids: list[list[int]] = field(default_factory=list)
    """Ids without padding: what the policy wrote, and what tools and environments answered in between."""
    completion_masks: list[list[bool]] = field(default_factory=list)
    """Which of the ids the policy wrote. These are trained on."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """The dataset's other columns, repeated for each completion."""
    group_ids: list[int] = field(default_factory=list)
    """Equal for completions of the same prompt."""
    trainer_state: object = None
    """`transformers.TrainerState` while training, None elsewhere."""
    turns: list[int | None] = field(default_factory=list)
    """Turns of each completion; None where it was sampled in one piece."""
    image_sizes: list[list[tuple[int, int]]] = field(default_factory=list)
    """Width and height that the policy saw of each picture of a completion's prompt; empty where no reward asks."""
    album: Album = field(default_factory=Album)
    """Opens the pictures that prompts and columns refer to."""

    @classmethod
    def of_groups(
        cls,
        groups: Sequence[Group],
        trainer_state: object = None,
        own_columns: Mapping[str, Sequence[object]] | None = None,
        seen_sizes: Callable[[Prompt], list[tuple[int, int]]] | None = None,
    ) -> RewardBatch:
        """Put the completions of whole groups side by side; the columns of a prompt are repeated for each.

        Args:
            own_columns: more columns, with a value for each completion: environments, or what a rollout function gave.
            seen_sizes: returns the sizes that the policy saw of a prompt's pictures; None: no reward asks for them.
        """
        sizes = [[] if seen_sizes is None else seen_sizes(g.prompt) for g in groups]
        # A name that is no text, as tables may have, cannot be asked for.
        names = list(dict.fromkeys(n for g in groups for n in g.prompt.columns if isinstance(n, str)))
        each = [(number, g.prompt, c) for number, g in enumerate(groups) for c in g.completions]
        columns = {name: [prompt.columns.get(name) for _, prompt, _ in each] for name in names}
        return cls(
            prompts=[content for g in groups for content in g.prompts()],
            completions=[content for g in groups for content in g.contents()],
            completion_ids=[list(c.ids[c.opening :]) for _, _, c in each],
            completion_masks=[list(c.loss_mask[c.opening :]) for _, _, c in each],
            columns=columns | {name: list(values) for name, values in (own_columns or {}).items()},
            group_ids=[number for number, _, _ in each],
            trainer_state=trainer_state,
            turns=[None if c.turns is None else len(c.turns) for _, _, c in each],
            image_sizes=[] if seen_sizes is None else [sizes[number] for number, _, _ in each],
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
            completion_masks=pick(self.completion_masks),
            columns={name: pick(values) for name, values in self.columns.items()},
            group_ids=pick(self.group_ids),
            trainer_state=self.trainer_state,
            turns=pick(self.turns),
            image_sizes=pick(self.image_sizes),
            album=self.album,
        )

    def arguments(self, notes: Notes) -> dict[str, object]:
        """Return everything that a reward can ask for, by name."""
        return {
            **self.columns,
            "prompts": self.prompts,
            "completions": self.completions,
            "completion_ids": self.completion_ids,
            "completion_masks": self.completion_masks,
            "group_ids": self.group_ids,
            **({"image_sizes": self.image_sizes} if self.image_sizes else {}),
            "trainer_state": self.trainer_state,
            "log_extra": notes.log_extra,
            "log_metric": notes.log_metric,
        }


class Notes:
    """Extras and metrics of rewards beside their scores: columns per sample, numbers per call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.extras: dict[str, list[Any]] = {}
        self.means: dict[str, Metric] = {}
        """Of the columns of numbers among the extras."""
        self.metrics: dict[str, Metric] = {}

    def take(self, notes: Notes, rows: Sequence[Sequence[int]], owner: str = "") -> None:
        """Add what was noted of a smaller batch; its sample `i` stands for these `rows[i]`.

        Args:
            owner: the reward that noted it. Its column is `<owner>/<column>` where another reward has noted one of that name
                for one of these samples.
        """
        for column, values in notes.extras.items():
            noted = [
                (place, v)
                for v, places in zip(values, rows, strict=True)
                for place in places
                if v is not None
            ]
            before = self.extras.get(column)
            if owner and before is not None and any(before[place] is not None for place, _ in noted):
                name = f"{owner}/{column}"
            else:
                name = column
            whole = self.extras.setdefault(name, [None] * self.size)
            for place, value in noted:
                whole[place] = value
            if column in notes.means:
                self.means = merge(self.means, {name: notes.means[column]})
        self.metrics = merge(self.metrics, notes.metrics)

    def all_metrics(self) -> dict[str, Metric]:
        """Return what was logged, and the means of columns: by their names, or `extra/<column>` where Covey has a metric so named."""
        names = {column: f"extra/{column}" if is_reserved(column) else column for column in self.means}
        return merge(self.metrics, {names[column]: mean for column, mean in self.means.items()})

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
            self.means = merge(self.means, {column: Mean.of(filter(math.isfinite, numbers))})

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

    def spread(self, rows: Sequence[int], size: int) -> RewardTable:
        """Return the table of a batch of `size` completions, of which only these rows were scored."""
        place = {row: position for position, row in enumerate(rows)}

        def fill(values: Sequence[T], missing: T) -> list[T]:
            return [values[place[row]] if row in place else missing for row in range(size)]

        return replace(
            self,
            scores={
                name: fill(column, Score(None, "not_applicable")) for name, column in self.scores.items()
            },
            weights={name: fill(column, 0.0) for name, column in self.weights.items()},
            extras={name: fill(column, None) for name, column in self.extras.items()},
        )

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
