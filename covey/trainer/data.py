"""Rows of the datasets → the prompts that each process samples in a rollout.

The loader is the one that `transformers.Trainer` expects, with one item per micro-batch, so that the Trainer's arithmetic
of steps and epochs holds. Only the first item of a rollout carries rows, the others are empty: nothing is loaded to be
thrown away, and skipping to where a run stopped costs nothing. Every process draws the same rows and keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from covey.errors import DatasetError, warn
from covey.plan import Plan
from covey.sample.given_data import MapRows, column_names, is_map_style, plain_row, readable
from covey.sample.prompts import PromptReader, seed_keys
from covey.types import Prompt, ScoredGroup

T = TypeVar("T")


Numbered = tuple[int, Mapping[str, object]]
"""A row and its position in the dataset."""
MOST_TASKS, FEW_TASKS = 100, 4
"""More values than the first in the task column are identities of rows, not tasks; so are more than the second, where they
are more than half of the rows."""
MOST_READ = 1_000
"""Rows that are read for their tasks where a transform makes them."""


class Unusable(dict[str, object]):
    """Stands in a stream where a row cannot be used, and says why: the run is saved before it ends of it."""


@dataclass(frozen=True)
class ShardedPrompts:
    """The prompts of a rollout, shared out over the processes."""

    plan: Plan
    reader: PromptReader
    kept: Sequence[int] | None
    """Numbers of the rows that may be drawn; None for a stream."""
    rank: int
    """This process."""

    def rounds(self, rows: Sequence[Numbered]) -> list[tuple[Sequence[Prompt], Sequence[Numbered]]]:
        """Return, for each round of sampling of a rollout, this process's prompts, and rows in reserve.

        Raises:
            DatasetError: a row cannot be used.
        """
        for _, row in rows:
            if isinstance(row, Unusable):
                raise DatasetError(str(row["fault"]))
        size = self.plan.prompts_per_rollout
        count = self.plan.micro_batches_per_pass // self.plan.steps_per_generation
        keys = seed_keys([number for number, _ in rows[:size]])
        own = [
            self.reader.read(row, number, key)
            for position, ((number, row), key) in enumerate(zip(rows[:size], keys, strict=True))
            if self.plan.owner(position) == self.rank
        ]
        return list(zip(_cut(own, count), _cut(rows[size:], count), strict=True))

    def fresh(self, reserve: Sequence[Numbered]) -> list[Prompt]:
        """Return this process's share of the rows kept for dynamic sampling."""
        own = reserve[self.rank :: self.plan.ranks]
        return [self.reader.read(row, number, (number, 0)) for number, row in own]

    def in_order(self, of_ranks: Sequence[Sequence[ScoredGroup]]) -> list[ScoredGroup]:
        """Return the groups of all processes in the order of the rollout."""
        groups = [iter(part) for part in of_ranks]
        return [next(groups[self.plan.owner(i)]) for i in range(self.plan.prompts_per_rollout)]

    def micro_batch_rows(self) -> list[range]:
        """Return, for each micro-batch of this process, the numbers of its samples among those that are held here."""
        numbers = range(self.plan.micro_batches_per_pass)
        if not self.plan.keeps_groups_whole:  # every process holds the samples of all
            return [self.plan.micro_batch_rows(self.rank, number) for number in numbers]
        size = self.plan.micro_batch
        return [range(number * size, (number + 1) * size) for number in numbers]


def _cut(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """Return `count` consecutive parts of the same size."""
    size = len(values) // count
    return [values[i * size : (i + 1) * size] for i in range(count)]


# --- the loader -----------------------------------------------------------------------------------------------------------


def make_loader(
    dataset: Any,
    prompts: ShardedPrompts,
    rounds: int,
    seed: int | None,
    step: Callable[[], int],
    workers: Mapping[str, Any],
) -> DataLoader[Any]:
    """Build a loader of whole rollouts, one item per micro-batch; the same on every process.

    Args:
        rounds: of dynamic sampling; for each of them, as many rows as a rollout has are held in reserve.
        seed: of the order; None keeps the order of the dataset.
        step: returns the optimizer steps taken so far.
        workers: arguments of the loader for processes that read rows ahead; a stream is read by this process alone.
    """
    plan, reserve = prompts.plan, prompts.plan.prompts_per_rollout * rounds
    if prompts.kept is None:
        return DataLoader(RolloutStream(dataset, plan, prompts.reader, reserve), batch_size=None)
    sampler = RolloutSampler(prompts.kept, plan, seed, step, reserve)
    return DataLoader(
        NumberedRows(readable(dataset)), batch_sampler=sampler, collate_fn=list, **dict(workers)
    )


class NumberedRows(Dataset[Numbered]):
    """A map-style dataset whose items know their position."""

    def __init__(self, rows: MapRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Numbered:
        return int(number), self.rows[int(number)]


class RolloutSampler(Sampler[list[int]]):
    """Row numbers for each micro-batch of an epoch: those of a whole rollout, then empty lists while it lasts.

    Args:
        kept: numbers of the rows that may be drawn.
        seed: of the order; None keeps the order of the dataset.
        step: returns the optimizer steps taken so far: each epoch has an order of its own.
        reserve: more rows per rollout, behind its own: other rows than those, in an order of the rollout's own.
    """

    def __init__(
        self, kept: Sequence[int], plan: Plan, seed: int | None, step: Callable[[], int], reserve: int = 0
    ) -> None:
        assert plan.rollouts_per_epoch is not None
        self.kept, self.plan, self.rollouts = np.asarray(kept), plan, plan.rollouts_per_epoch
        self.seed, self.step, self.reserve = seed, step, reserve

    def __len__(self) -> int:
        return self.rollouts * self.plan.micro_batches_per_rollout

    def __iter__(self) -> Iterator[list[int]]:
        assert self.plan.steps_per_epoch is not None
        epoch, size = self.step() // self.plan.steps_per_epoch, self.plan.prompts_per_rollout
        order = self.kept if self.seed is None else _generator(self.seed, epoch).permutation(self.kept)
        for rollout in range(self.rollouts):
            rows = [int(order[i % len(order)]) for i in range(rollout * size, (rollout + 1) * size)]
            if self.reserve:
                others = _generator(self.seed or 0, epoch, rollout).permutation(np.setdiff1d(self.kept, rows))
                rows += [int(i) for i in others[: self.reserve]]
            yield rows
            yield from ([] for _ in range(self.plan.micro_batches_per_rollout - 1))


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


class RolloutStream(IterableDataset[list[Numbered]]):
    """The same for a dataset that can only be read from front to back; it starts over when it ends."""

    def __init__(self, rows: Any, plan: Plan, reader: PromptReader, reserve: int = 0) -> None:
        self.rows, self.plan, self.reader, self.reserve = rows, plan, reader, reserve

    def __iter__(self) -> Iterator[list[Numbered]]:
        rows = self._endless()
        while True:
            try:
                yield [next(rows) for _ in range(self.plan.prompts_per_rollout + self.reserve)]
            except DatasetError as error:
                yield [(0, Unusable(fault=str(error)))]
                return
            yield from ([] for _ in range(self.plan.micro_batches_per_rollout - 1))

    def _endless(self) -> Iterator[Numbered]:
        number, round_ = 0, 0
        while True:
            before, kept = number, False
            if round_ and hasattr(self.rows, "set_epoch"):
                self.rows.set_epoch(round_)
            for row in map(plain_row, self.rows):
                number += 1
                if self.reader.is_kept(row, number - 1):
                    kept = True
                    yield number - 1, row
            if not kept:
                limit = f"of the {number - before} rows is within max_prompt_length={self.reader.max_length}"
                ended = f"is at its end after {number} rows, and a generator cannot be read again"
                fault = (
                    f"has no prompt to sample from: none {limit}"
                    if number > before
                    else ended
                    if number
                    else "is empty"
                )
                raise DatasetError(
                    f"The training dataset {fault}. Give at least one prompt that can be kept; in place of a generator, the "
                    "function that yields the rows, or as many rows as the run takes."
                )
            round_ += 1


# --- what a dataset says about itself ---------------------------------------------------------------------------------------


def task_names(dataset: Any, column: str) -> list[str]:
    """Return the tasks of a map-style dataset; none where it has no such column, or more values than tasks can be."""
    if dataset is None or not is_map_style(dataset) or column not in (column_names(dataset) or []):
        return []
    rows: Any = dataset
    if column in getattr(rows, "column_names", ()):
        values = rows.select_columns([column]).with_format(None)[column]
    else:  # a list, or rows that a transform makes
        count = len(rows) if isinstance(rows, list | tuple) else min(len(rows), MOST_READ)
        values = [readable(rows)[number].get(column) for number in range(count)]
    names = sorted({str(value) for value in values if value is not None})
    return names if are_tasks(len(names), len(values)) else []


def are_tasks(names: int, rows: int) -> bool:
    """Return whether so many names in so many rows group the rows, rather than tell each from the others."""
    return names <= min(MOST_TASKS, max(FEW_TASKS, rows // 2))


def kept_rows(dataset: object, reader: PromptReader) -> list[int] | None:
    """Return the numbers of the rows that may be drawn; None for a stream.

    Raises:
        DatasetError: all of them are dropped, or one is too long and may not be.
    """
    if dataset is None or not is_map_style(dataset):
        return None
    rows, total = readable(dataset), len(dataset)
    if reader.max_length is None or reader.overlong == "truncate":
        return list(range(total))
    kept = [number for number in range(total) if reader.is_kept(rows[number], number)]
    reason = f"of {total} rows of the training dataset have a prompt of more than max_prompt_length={reader.max_length} tokens"
    if total and not kept:
        advice = "none are left. Raise the limit, shorten the prompts, or set overlong_prompts to 'truncate'."
        raise DatasetError(f"All {reason[3:]}, and overlong_prompts='drop' leaves them out: {advice}")
    if len(kept) < total:
        warn(f"{total - len(kept)} {reason}, and overlong_prompts='drop' leaves them out.")
    return kept
