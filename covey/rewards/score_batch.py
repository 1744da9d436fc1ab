"""Scores one batch with every reward: routes, gates, calls side by side, one table at the end."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from covey.rewards.batch import Notes, RewardBatch
from covey.rewards.cache import Cache, Key, row_keys
from covey.rewards.contract import Reward
from covey.rewards.execution.guarded import Scored, call_guarded
from covey.rewards.routing import applicable_rows, gate_score, groups_of, in_waves
from covey.types import Score

NOT_APPLICABLE = Score(None, "not_applicable")


@dataclass
class Column:
    """What one reward gave a batch."""

    scores: list[Score]
    num_run: int = 0
    """Samples that the function was asked for, or that the cache answered for."""
    num_errors: int = 0
    num_timeouts: int = 0
    num_faults: int = 0
    """Samples that it could not judge: it raised, took too long, or said that it failed."""
    num_cached: int = 0
    """Samples answered without a call: known before, or equal to another one of the batch."""
    seconds: float = 0.0

    def add(self, scored: Scored) -> None:
        self.num_errors += scored.num_errors
        self.num_timeouts += scored.num_timeouts
        self.seconds += scored.seconds


@dataclass
class Evaluation:
    """All columns of a batch, and what the rewards noted."""

    columns: dict[str, Column] = field(default_factory=dict)
    notes: Notes = field(default_factory=lambda: Notes(0))

    @property
    def scores(self) -> dict[str, list[Score]]:
        return {name: column.scores for name, column in self.columns.items()}


def score_batch(
    rewards: Sequence[Reward], batch: RewardBatch, task_column: str = "task", cache: Cache | None = None
) -> Evaluation:
    """Score a batch.

    Rewards without gates run first: coroutines, threads and processes side by side, and the inline ones meanwhile, in
    the caller's own thread. Those behind gates follow, on the rows that their gates let through.

    Raises:
        RewardError: a reward raised or broke the contract, and does not say otherwise.
    """
    evaluation = Evaluation(notes=Notes(len(batch)))
    for wave in in_waves(rewards):
        plans = [_Plan(reward, batch, task_column, evaluation.scores) for reward in wave]
        tasks = [functools.partial(plan.run, cache) for plan in plans]
        parts = _side_by_side(tasks, [_is_inline(reward) for reward in wave])
        for reward, (column, notes) in zip(wave, parts, strict=True):
            evaluation.columns[reward.name] = column
            evaluation.notes.take(notes, [[row] for row in range(len(batch))])
    evaluation.columns = {r.name: evaluation.columns[r.name] for r in rewards}
    return evaluation


def _is_inline(reward: Reward) -> bool:
    return reward.options.where == "inline" and not reward.is_async


def _side_by_side(
    tasks: Sequence[Callable[[], tuple[Column, Notes]]], inline: Sequence[bool]
) -> list[tuple[Column, Notes]]:
    """Run tasks; those that are not inline start at once in threads, where they only wait.

    The threads are daemons: when a task raises, nobody waits for the others.
    """
    waiting = {i: _in_background(task) for i, task in enumerate(tasks) if not inline[i]}
    done = {i: task() for i, task in enumerate(tasks) if inline[i]}
    return [done[i] if i in done else waiting[i].result() for i in range(len(tasks))]


def _in_background(task: Callable[[], tuple[Column, Notes]]) -> Future[tuple[Column, Notes]]:
    future: Future[tuple[Column, Notes]] = Future()

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="covey-rewards", daemon=True).start()
    return future


class _Plan:
    """One reward and the rows that it is run for."""

    def __init__(
        self, reward: Reward, batch: RewardBatch, task_column: str, scored: Mapping[str, Sequence[Score]]
    ) -> None:
        self.reward = reward
        self.batch = batch
        applicable = applicable_rows(reward, batch, task_column)
        gated = {row: gate_score(reward, row, scored) for row in applicable}
        self.scores: list[Score] = [NOT_APPLICABLE] * len(batch)
        for row, score in gated.items():
            self.scores[row] = score or NOT_APPLICABLE
        self.rows = [row for row in applicable if gated[row] is None]

    def run(self, cache: Cache | None) -> tuple[Column, Notes]:
        column, notes = Column(self.scores, num_run=len(self.rows)), Notes(len(self.batch))
        if not self.rows:
            return column, notes
        if self.reward.options.scope == "group":
            self._run_groups(column, notes)
        elif self.reward.options.pure:
            self._run_once_each(column, notes, cache)
        else:
            self._run_rows(column, notes, [[row] for row in self.rows])
        return column, notes

    def _run_groups(self, column: Column, notes: Notes) -> None:
        """Each group whole, siblings behind a closed gate included; their scores stay what the gate made them."""
        wanted = set(self.rows)
        for group in groups_of(self.batch):
            if wanted.intersection(group):
                kept = [[row] if row in wanted else [] for row in group]
                self._call(column, notes, group, kept)

    def _run_once_each(self, column: Column, notes: Notes, cache: Cache | None) -> None:
        """Rows with the same content once, and none that the cache knows."""
        keys = row_keys(self.reward, self.batch.select(self.rows))
        known = cache.get(self.reward, keys) if cache else [None] * len(keys)
        places: dict[Key | int, list[int]] = {}
        for row, key, score in zip(self.rows, keys, known, strict=True):
            if score is not None:
                column.scores[row] = score
            else:
                places.setdefault(row if key is None else key, []).append(row)
        column.num_cached = len(self.rows) - len(places)
        if places:
            self._run_rows(column, notes, list(places.values()))
        if cache:
            found = {key: column.scores[rows[0]] for key, rows in places.items() if isinstance(key, bytes)}
            cache.put(self.reward, found)

    def _run_rows(self, column: Column, notes: Notes, places: list[list[int]]) -> None:
        self._call(column, notes, [rows[0] for rows in places], places)

    def _call(self, column: Column, notes: Notes, asked: list[int], places: list[list[int]]) -> None:
        """Call the reward for the rows `asked`; what it says of the i-th holds for all of `places[i]`."""
        whole = asked == list(range(len(self.batch)))
        scored = call_guarded(self.reward, self.batch if whole else self.batch.select(asked))
        for score, rows in zip(scored.scores, places, strict=True):
            column.num_faults += len(rows) if score.error is not None else 0
            for row in rows:
                column.scores[row] = score
        column.add(scored)
        notes.take(scored.notes, places)
