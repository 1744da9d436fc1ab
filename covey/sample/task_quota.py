"""Quotas of tasks: which task each prompt of a run is of, and which row of it, where tasks have shares of the prompts.

With K tasks of shares s_k, ε = 1 / (2K − 2) and c_k(t) prompts of task k among the first t of the run,

    |c_k(t) − s_k t| ≤ 1 − ε        for every t

The j-th prompt of task k may come from t = (j − 1 + ε) / s_k on, and is due at (j − ε) / s_k. Of those that may come, the one that is due
first comes: R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980), 323-330. So what a rollout has too much or too little
of a task is made up for by the next ones, no task starves, and tasks alternate within a rollout.

A row is a function of the seed and of its place in the run alone. Each task goes through its rows by itself, in another order each
time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from covey.sample.unequal_draw import generator_of

EPOCHS, REFILLS = 0x7A, 0x7B
"""Parts of the keys of the random numbers that order the rows of a task."""


def task_order(shares: Sequence[Fraction]) -> Iterator[int]:
    """Yield the number of the task of each prompt of a run, without end.

    Args:
        shares: of the tasks, above 0; they sum to 1.
    """
    slack = Fraction(1, max(1, 2 * len(shares) - 2))
    drawn, begins = [0] * len(shares), [slack / share for share in shares]
    due = [(1 - slack) / share for share in shares]
    for place in count(1):
        task = min((k for k, begin in enumerate(begins) if begin <= place), key=due.__getitem__)
        drawn[task] += 1
        begins[task] = (drawn[task] + slack) / shares[task]
        due[task] = (drawn[task] + 1 - slack) / shares[task]
        yield task


class TaskQuota:
    """The rows of each rollout by the shares of their tasks.

    Args:
        column: names the task of a row.
        rows: numbers of the rows that may be drawn, by task.
        shares: by task, in proportion to one another; tasks with 0 are left out.
        seed: of the order of rows; None keeps that of the dataset.
    """

    def __init__(
        self,
        column: str,
        rows: Mapping[str, Sequence[int]],
        shares: Mapping[str, float],
        seed: int | None,
    ) -> None:
        self.column, self.seed = column, seed
        self.names = sorted(name for name, share in shares.items() if share > 0)
        self.rows = [np.asarray(rows[name], dtype=np.int64) for name in self.names]
        exact = [Fraction(str(shares[name])) for name in self.names]
        self._order = task_order([share / sum(exact) for share in exact])
        self._made = array("L")
        """The tasks of the prompts from the start of the run, as far as they were asked for."""
        self._epochs: dict[int, tuple[int, NDArray[np.int64]]] = {}
        """Of each task: which time its rows are gone through, and their order then."""

    @property
    def kept(self) -> list[int]:
        """Return the numbers of all rows that may be drawn, ascending."""
        return sorted(int(number) for rows in self.rows for number in rows)

    def tasks(self, number: int, size: int) -> list[int]:
        """Return the number of the task of each prompt of rollout `number`, which has `size` of them."""
        stop = (number + 1) * size
        self._made.extend(islice(self._order, max(0, stop - len(self._made))))
        return self._made[stop - size : stop].tolist()

    def draw(self, number: int, size: int, rounds: int = 0) -> list[int]:
        """Return the rows of rollout `number`, and behind them other rows for refills.

        Args:
            size: prompts of a rollout.
            rounds: of refills: so many times the prompts that the rollout has of a task, as far as the task has other rows.
        """
        tasks, made = self.tasks(number, size), np.asarray(self._made, dtype=np.int64)
        before = np.bincount(made[: number * size], minlength=len(self.names))
        places = [count(int(drawn)) for drawn in before]
        own = [self._row(task, next(places[task])) for task in tasks]
        fresh: list[int] = []
        for task, drawn in enumerate(np.bincount(tasks, minlength=len(self.names)) if rounds else ()):
            others = np.setdiff1d(self.rows[task], own)
            generator = generator_of(self.seed or 0, REFILLS, task, number)
            fresh += generator.permutation(others)[: rounds * int(drawn)].tolist()
        return own + fresh

    def _row(self, task: int, place: int) -> int:
        """Return the row that a task has at a place in its own course."""
        rows = self.rows[task]
        epoch, at = divmod(place, len(rows))
        if self.seed is not None and self._epochs.get(task, (-1, rows))[0] != epoch:
            order = generator_of(self.seed, EPOCHS, task, epoch).permutation(rows)
            self._epochs[task] = epoch, order
        return int(self._epochs.get(task, (0, rows))[1][at])
