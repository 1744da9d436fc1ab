"""Rows of the datasets → the prompts that each process samples in a rollout.

The loader is the one that `transformers.Trainer` expects, with one item per micro-batch, so that the Trainer's arithmetic
of steps and epochs holds. Only the first item of a rollout carries rows, the others are empty: nothing is loaded to be
thrown away, and skipping to where a run stopped costs nothing. Every process draws the same rows and keeps its own.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from covey.errors import DatasetError, warn
from covey.plan import Plan, cut
from covey.sample.given_data import MapRows, column_names, is_map_style, readable, rows_of_stream
from covey.sample.prompts import PromptReader, seed_keys
from covey.sample.task_quota import TaskQuota
from covey.sample.unequal_draw import generator_of
from covey.types import Prompt, ScoredGroup

Numbered = tuple[int, Mapping[str, object]]
"""A row and its position in the dataset."""
Round = tuple[Sequence[Prompt], Sequence[Prompt]]
"""The prompts of a round of sampling, and those that may take the place of some."""
MOST_TASKS, FEW_TASKS = 100, 4
"""More values than the first in the task column are identities of rows, not tasks; so are more than the second, where they
are more than half of the rows."""
MOST_READ = 1_000
"""Rows that are read for their tasks where a transform makes them."""


class Unusable(dict[str, object]):
    """Stands where a row cannot be read, and says why: the run is saved before it ends of it."""


@dataclass(frozen=True)
class Ahead:
    """The rollouts whose rows are read when a rollout is due: its own, or with a lag those that begin then."""

    lag: int = 0
    present: int = 0
    """The rollout that the next optimizer step trains on."""
    first: int = 0
    """The rollout that is due next: the present one, or the one behind it where that has been trained on in part."""
    missing: int = 0
    """The first that has not begun."""
    total: int = sys.maxsize
    """Rollouts of the run: none is sampled that nobody trains on."""

    def due(self, number: int) -> range:
        """Return the rollouts that begin when rollout `number` is due: as a rule, rollout `number` + lag."""
        if number < self.first:  # skipped, when a run goes on inside an epoch
            return range(0)
        start = self.missing if number == self.first else max(self.missing, number + self.lag)
        return range(start, max(start, min(number + self.lag + 1, self.total)))


@dataclass(frozen=True)
class ShardedPrompts:
    """The prompts of a rollout, shared out over the processes."""

    plan: Plan
    reader: PromptReader
    kept: Sequence[int] | None
    """Numbers of the rows that may be drawn; None for a stream."""
    rank: int
    """This process."""
    quota: TaskQuota | None = None
    """Draws rows by the shares of their tasks; None: all rows alike."""

    def rollouts(self, rows: Sequence[Numbered], count: int) -> list[list[Round]]:
        """Return the rounds of so many rollouts, whose rows stand one after the other.

        Raises:
            DatasetError: a row cannot be used.
        """
        is_whole = not any(isinstance(row, Unusable) for _, row in rows)
        return [self.rounds(part) for part in (cut(rows, count) if is_whole else [rows])]

    def rounds(self, rows: Sequence[Numbered]) -> list[Round]:
        """Return, for each round of sampling of a rollout, this process's prompts, and fresh ones for dynamic sampling.

        Raises:
            DatasetError: a row cannot be used.
        """
        for _, row in rows:
            if isinstance(row, Unusable):
                raise DatasetError(str(row["fault"]))
        numbers = seed_keys([number for number, _ in rows])
        count = self.plan.micro_batches_per_pass // self.plan.steps_per_generation

        def read(places: Sequence[int]) -> list[Prompt]:
            return [self.reader.read(rows[i][1], rows[i][0], numbers[i]) for i in places]

        own = cut(self.plan.places(self.rank), count)
        fresh = self._places_of_refills([row for _, row in rows], count)
        return list(zip(map(read, own), map(read, fresh), strict=True))

    def _places_of_refills(self, rows: Sequence[Mapping[str, object]], count: int) -> list[list[int]]:
        """Return which of a rollout's rows this process has for refills, in each of `count` rounds of sampling.

        Where tasks have shares, those of a task are dealt out to its places in the rollout: a group is replaced by one of its task.
        """
        size, numbers = self.plan.prompts_per_rollout, range(len(rows))
        if self.quota is None:
            return [list(part[self.rank :: self.plan.ranks]) for part in cut(numbers[size:], count)]
        rounds = cut(self.plan.places(self.rank), count)
        round_of = {place: n for n, part in enumerate(rounds) for place in part}
        tasks, found = [str(row.get(self.quota.column)) for row in rows], [list[int]() for _ in range(count)]
        places = {
            task: itertools.cycle([p for p in range(size) if tasks[p] == task]) for task in tasks[:size]
        }
        for i in numbers[size:]:
            if (place := next(places[tasks[i]])) in round_of:
                found[round_of[place]].append(i)
        return found

    def in_order(self, of_ranks: Sequence[Sequence[ScoredGroup]], places: Iterable[int]) -> list[ScoredGroup]:
        """Return the groups that all processes sampled, in the order of the rollout, in which they have these places."""
        groups = [iter(part) for part in of_ranks]
        return [next(groups[self.plan.owner(i)]) for i in places]

    def micro_batch_rows(self) -> list[range]:
        """Return, for each micro-batch of this process, the numbers of its samples among those that are held here."""
        numbers = range(self.plan.micro_batches_per_pass)
        if not self.plan.keeps_groups_whole:  # every process holds the samples of all
            return [self.plan.micro_batch_rows(self.rank, number) for number in numbers]
        size = self.plan.micro_batch
        return [range(number * size, (number + 1) * size) for number in numbers]


# --- the loader -----------------------------------------------------------------------------------------------------------


def make_loader(
    dataset: Any,
    prompts: ShardedPrompts,
    rounds: int,
    seed: int | None,
    ahead: Callable[[], Ahead],
    workers: Mapping[str, Any],
) -> DataLoader[Any]:
    """Build a loader of whole rollouts, one item per micro-batch; the same on every process.

    Args:
        rounds: of dynamic sampling; for each of them, as many rows as a rollout has are held in reserve.
        seed: of the order; None keeps the order of the dataset.
        ahead: is asked when an epoch begins, or goes on.
        workers: arguments of the loader for processes that read rows ahead; a stream is read by this process alone.
    """
    plan, reserve = prompts.plan, prompts.plan.prompts_per_rollout * rounds
    if prompts.kept is None:
        return DataLoader(RolloutStream(dataset, plan, prompts.reader, reserve, ahead), batch_size=None)
    quota = None if prompts.quota is None else partial(prompts.quota.draw, rounds=rounds)
    sampler = RolloutSampler(prompts.kept, plan, seed, ahead, reserve, quota)
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
        try:
            return int(number), self.rows[int(number)]
        except DatasetError as error:
            return int(number), Unusable(fault=str(error))


class RolloutSampler(Sampler[list[int]]):
    """Row numbers for each micro-batch of an epoch: those of the rollouts that begin with it, then empty lists.

    Args:
        kept: numbers of the rows that may be drawn.
        seed: of the order; None keeps the order of the dataset. Each epoch has an order of its own.
        ahead: is asked when an epoch begins, or goes on.
        reserve: more rows per rollout, behind its own: other rows than those, in an order of the rollout's own.
        draw: returns the rows of a rollout, given its number and size, in place of all that; None: nothing does.
    """

    def __init__(
        self,
        kept: Sequence[int],
        plan: Plan,
        seed: int | None,
        ahead: Callable[[], Ahead],
        reserve: int = 0,
        draw: Callable[[int, int], list[int]] | None = None,
    ) -> None:
        assert plan.rollouts_per_epoch is not None
        self.kept, self.plan, self.rollouts = np.asarray(kept), plan, plan.rollouts_per_epoch
        self.seed, self.ahead, self.reserve, self.draw = seed, ahead, reserve, draw

    def __len__(self) -> int:
        return self.rollouts * self.plan.micro_batches_per_rollout

    def __iter__(self) -> Iterator[list[int]]:
        ahead, orders = self.ahead(), dict[int, Any]()
        start = ahead.present // self.rollouts * self.rollouts
        for number in range(start, start + self.rollouts):
            yield [row for later in ahead.due(number) for row in self._rows(later, orders)]
            yield from ([] for _ in range(self.plan.micro_batches_per_rollout - 1))

    def _rows(self, number: int, orders: dict[int, Any]) -> list[int]:
        """Return the rows of a rollout, and those in reserve; `orders` keeps the order of the epoch that was read last."""
        if self.draw is not None:
            return self.draw(number, self.plan.prompts_per_rollout)
        epoch, rollout = divmod(number, self.rollouts)
        if epoch not in orders:
            orders.clear()
            orders[epoch] = (
                self.kept if self.seed is None else generator_of(self.seed, epoch).permutation(self.kept)
            )
        order, size = orders[epoch], self.plan.prompts_per_rollout
        rows = [int(order[i % len(order)]) for i in range(rollout * size, (rollout + 1) * size)]
        if self.reserve:
            others = generator_of(self.seed or 0, epoch, rollout).permutation(np.setdiff1d(self.kept, rows))
            rows += [int(i) for i in others[: self.reserve]]
        return rows


class RolloutStream(IterableDataset[list[Numbered]]):
    """The same for a dataset that can only be read from front to back; it starts over when it ends."""

    def __init__(
        self,
        rows: Any,
        plan: Plan,
        reader: PromptReader,
        reserve: int = 0,
        ahead: Callable[[], Ahead] = Ahead,
    ) -> None:
        self.rows, self.plan, self.reader, self.reserve, self.ahead = rows, plan, reader, reserve, ahead

    def __iter__(self) -> Iterator[list[Numbered]]:
        rows, ahead, size = self._endless(), self.ahead(), self.plan.prompts_per_rollout + self.reserve
        read = 0
        for number in itertools.count():
            due = ahead.due(number)
            try:
                for _ in range(
                    (due.start - read) * size if due else 0
                ):  # of rollouts that a checkpoint holds
                    next(rows)
                yield [next(rows) for _ in range(len(due) * size)]
            except DatasetError as error:
                yield [(0, Unusable(fault=str(error)))]
                return
            read = due.stop if due else read
            yield from ([] for _ in range(self.plan.micro_batches_per_rollout - 1))

    def _endless(self) -> Iterator[Numbered]:
        number, round_, last = 0, 0, 0
        while True:
            before, faults = number, Counter[str | None]()
            if round_ and hasattr(self.rows, "set_epoch"):
                self.rows.set_epoch(round_)
            for row in rows_of_stream(self.rows, number):
                number += 1
                fault = self.reader.fault(row, number - 1)
                if round_ == 0:
                    faults[fault] += 1
                if fault is None:
                    last = number
                    yield number - 1, row
            warn_of_dropped(faults, self.reader)
            if last <= before:
                raise DatasetError(
                    f"The training dataset {self._fault(number, number - before)}. Give at least one prompt that can be kept; in "
                    "place of a generator, the function that yields the rows, or as many rows as the run takes."
                )
            round_ += 1

    def _fault(self, number: int, read: int) -> str:
        """Return what is wrong where a round of so many rows has none that is kept, after `number` of them in all."""
        if not read:
            ended = f"is at its end after {number} rows, and a generator cannot be read again"
            return ended if number else "is empty"
        longest, limits = self.reader.max_length, []
        if longest is not None:
            limits.append(f"is within max_prompt_length={longest}")
        if self.reader.drops_bad_images:
            limits.append("has pictures that can be used")
        return f"has no prompt to sample from: none of the {read} rows {' and '.join(limits)}"


# --- what a dataset says about itself ---------------------------------------------------------------------------------------


def task_names(dataset: Any, column: str) -> list[str]:
    """Return the tasks of a map-style dataset; none where it has no such column, or more values than tasks can be."""
    if dataset is None or not is_map_style(dataset) or column not in (column_names(dataset) or []):
        return []
    rows: Any = dataset
    values = task_values(dataset, column, len(rows) if isinstance(rows, list | tuple) else MOST_READ)
    names = sorted({str(value) for value in values if value is not None})
    return names if are_tasks(len(names), len(values)) else []


def task_values(dataset: Any, column: str, most: int = sys.maxsize) -> Sequence[object]:
    """Return a column of a map-style dataset, None where a row has none; of rows that a transform makes, the first `most`."""
    if column in getattr(dataset, "column_names", ()):
        return list(dataset.select_columns([column]).with_format(None)[column])
    rows = readable(dataset)
    return [rows[number].get(column) for number in range(min(len(rows), most))]


WAYS_OUT = {
    "long": "raise the limit, shorten the prompts, or set overlong_prompts to 'truncate'",
    "picture": "mend the pictures; bad_images='error' says what is wrong with the first",
}
"""By the fault of rows that were left out: how some stay."""


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
    if not reader.may_drop:
        return list(range(total))
    faults: list[str | None] = [reader.fault(rows[number], number) for number in range(total)]
    kept = [number for number, fault in enumerate(faults) if fault is None]
    reasons = warn_of_dropped(Counter(faults), reader)
    if total and not kept:
        advice = f"none are left. To go on, {', and '.join(WAYS_OUT[fault] for fault in WAYS_OUT if fault in faults)}."
        raise DatasetError(
            f"All {total} rows of the training dataset have {' or '.join(reasons)} leaves them out: {advice}"
        )
    return kept


def warn_of_dropped(faults: Counter[str | None], reader: PromptReader) -> list[str]:
    """Say how many rows are left out, given how many have which fault, or None; return the reasons."""
    reasons = {
        "long": f"a prompt of more than max_prompt_length={reader.max_length} tokens, and overlong_prompts='drop'",
        "picture": "a picture that cannot be used, and bad_images='drop'",
    }
    for fault, reason in reasons.items():
        if count := faults[fault]:
            warn(f"{count} of {faults.total()} rows of the training dataset have {reason} leaves them out.")
    return [reason for fault, reason in reasons.items() if fault in faults]
