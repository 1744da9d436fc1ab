"""Which rows a round of sampling takes, as the data loader that `transformers.Trainer` expects.

One item per micro-batch, so that the Trainer's arithmetic of steps and epochs holds; only the first item of a window
carries rows, the others are empty: nothing is loaded to be thrown away, and skipping to where a run stopped costs
nothing. Every process draws the same rows and keeps those that it owns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from covey.errors import DatasetError

Numbered = tuple[int, Mapping[str, Any]]
"""A row and its position in the dataset."""


class NumberedRows(Dataset[Numbered]):
    """A map-style dataset whose items know their position."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Numbered:
        return int(number), self.rows[int(number)]


class WindowSampler(Sampler[list[int]]):
    """Row numbers for each micro-batch of an epoch: those of a whole window, then empty lists while it lasts.

    Args:
        kept: numbers of the rows that may be drawn.
        prompts_per_window: rows per window.
        window_passes: micro-batches per window, all passes.
        windows: windows per epoch.
        seed: of the order; None keeps the order of the dataset.
        epoch: tells which epoch begins; each has an order of its own.
        reserve: more rows per window, behind its own: other rows than those, in an order of the window's own.
    """

    def __init__(
        self,
        kept: Sequence[int],
        prompts_per_window: int,
        window_passes: int,
        windows: int,
        seed: int | None,
        epoch: Callable[[], int],
        reserve: int = 0,
    ) -> None:
        self.kept, self.reserve = np.asarray(kept), reserve
        self.prompts_per_window, self.window_passes, self.windows = prompts_per_window, window_passes, windows
        self.seed, self.epoch = seed, epoch

    def __len__(self) -> int:
        return self.windows * self.window_passes

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.epoch()
        order = self._order(epoch)
        for window in range(self.windows):
            start = window * self.prompts_per_window
            rows = [int(order[i % len(order)]) for i in range(start, start + self.prompts_per_window)]
            yield rows + self._reserved(rows, epoch, window)
            yield from ([] for _ in range(self.window_passes - 1))

    def _order(self, epoch: int) -> Any:
        return self.kept if self.seed is None else _generator(self.seed, epoch).permutation(self.kept)

    def _reserved(self, taken: list[int], epoch: int, window: int) -> list[int]:
        if not self.reserve:
            return []
        others = np.setdiff1d(self.kept, taken)
        return [int(i) for i in _generator(self.seed or 0, epoch, window).permutation(others)[: self.reserve]]


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


class WindowStream(IterableDataset[list[Numbered]]):
    """The same for a dataset that can only be read from front to back; it starts over when it ends."""

    def __init__(
        self,
        rows: Any,
        prompts_per_window: int,
        window_passes: int,
        keep: Callable[[Mapping[str, Any], int], bool],
        reserve: int = 0,
    ) -> None:
        self.rows, self.keep, self.reserve = rows, keep, reserve
        self.prompts_per_window, self.window_passes = prompts_per_window, window_passes

    def __iter__(self) -> Iterator[list[Numbered]]:
        rows = self._endless()
        while True:
            yield [next(rows) for _ in range(self.prompts_per_window + self.reserve)]
            yield from ([] for _ in range(self.window_passes - 1))

    def _endless(self) -> Iterator[Numbered]:
        number, round_ = 0, 0
        while True:
            before = number
            if round_ and hasattr(self.rows, "set_epoch"):
                self.rows.set_epoch(round_)
            for row in self.rows:
                number += 1
                if self.keep(row, number - 1):
                    yield number - 1, row
            if number == before:
                raise DatasetError("The training dataset is empty. Give at least one prompt.")
            round_ += 1


def map_loader(rows: Any, sampler: WindowSampler) -> DataLoader[Any]:
    """A loader over a map-style dataset."""
    return DataLoader(NumberedRows(rows), batch_sampler=sampler, collate_fn=list)


def stream_loader(stream: WindowStream) -> DataLoader[Any]:
    """A loader over a stream."""
    return DataLoader(stream, batch_size=None)


def is_map_style(rows: Any) -> bool:
    """Whether rows can be read by number."""
    return hasattr(rows, "__len__") and hasattr(rows, "__getitem__")


def column_names(rows: Any) -> list[str] | None:
    """Names of the columns; None where the dataset does not say without being read."""
    names = getattr(rows, "column_names", None)
    if isinstance(names, list):
        return names
    if is_map_style(rows) and len(rows) and isinstance(rows[0], Mapping):
        return list(rows[0])
    return None
