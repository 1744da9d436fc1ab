"""Rows of a window → the prompts that each process samples, and the groups of all processes in the window's order again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from covey.plan import Plan
from covey.sample.prompts import PromptReader, seed_keys
from covey.trainer.data import Numbered, WindowSampler, WindowStream, map_loader, stream_loader
from covey.types import Prompt, ScoredGroup

T = TypeVar("T")


@dataclass(frozen=True)
class Allotment:
    """Which process does what in a window."""

    plan: Plan
    reader: PromptReader
    rank: int
    """This process."""
    ranks: int
    """Processes."""

    def rounds(self, rows: Sequence[Numbered]) -> list[tuple[Sequence[Prompt], Sequence[Numbered]]]:
        """For each round of sampling of a window: this process's prompts, and rows in reserve."""
        size, count = self.plan.prompts_per_window, self.plan.window // self.plan.steps_per_generation
        own, reserve = _parts(self._own(rows[:size]), count), _parts(rows[size:], count)
        return list(zip(own, reserve, strict=True))

    def _own(self, rows: Sequence[Numbered]) -> list[Prompt]:
        """Those of a window's prompts whose groups this process samples and scores."""
        keys = seed_keys([number for number, _ in rows])
        return [
            self.reader.read(row, number, key)
            for position, ((number, row), key) in enumerate(zip(rows, keys, strict=True))
            if self.plan.owner(position) == self.rank
        ]

    def fresh(self, reserve: Sequence[Numbered]) -> list[Prompt]:
        """This process's share of the rows kept for dynamic sampling."""
        own = reserve[self.rank :: self.ranks]
        return [self.reader.read(row, number, (number, 0)) for number, row in own]

    def in_order(self, of_ranks: Sequence[Sequence[ScoredGroup]]) -> list[ScoredGroup]:
        """Every process's groups in the order of the window."""
        groups = [iter(part) for part in of_ranks]
        return [next(groups[self.plan.owner(i)]) for i in range(self.plan.prompts_per_window)]

    def micro_batch_rows(self, number: int) -> range:
        """Numbers of a micro-batch's samples among those that this process holds."""
        if self.plan.keeps_groups_whole:  # only its own groups are here, step after step
            return range(number * self.plan.micro_batch, (number + 1) * self.plan.micro_batch)
        return self.plan.micro_batch_rows(self.rank, number)


def _parts(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """Cut into `count` consecutive parts of the same size."""
    size = len(values) // count
    return [values[i * size : (i + 1) * size] for i in range(count)]


def window_loader(
    dataset: Any,
    kept: Sequence[int] | None,
    plan: Plan,
    reader: PromptReader,
    reserve: int,
    seed: int | None,
    step: Callable[[], int],
) -> Any:
    """Rows of whole windows, one item per micro-batch; the same on every process.

    Args:
        kept: numbers of the rows that may be drawn; None for a stream.
        reserve: more rows per window, for dynamic sampling.
        seed: of the order; None keeps the order of the dataset.
        step: optimizer steps taken so far.
    """
    size, passes, per_epoch = plan.prompts_per_window, plan.window_passes, plan.steps_per_epoch
    if kept is None:
        return stream_loader(WindowStream(dataset, size, passes, reader.is_kept, reserve))
    assert plan.windows_per_epoch is not None and per_epoch is not None
    epoch = lambda: step() // per_epoch  # noqa: E731
    return map_loader(
        dataset, WindowSampler(kept, size, passes, plan.windows_per_epoch, seed, epoch, reserve)
    )
