"""One batch scored with every reward: routes, gates, calls side by side, one table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from covey.rewards.batch import CallCounts, Notes, RewardBatch, RewardTable
from covey.rewards.cache import Key, RewardCache, row_keys
from covey.rewards.contract import Reward
from covey.rewards.execution.executors import start_thread
from covey.rewards.execution.guarded import call_guarded
from covey.rewards.routing import applicable_rows, gate_score, groups_of, in_waves
from covey.rewards.schedules import Weight, progress_of, weight_at
from covey.types import Score

NOT_APPLICABLE = Score(None, "not_applicable")


def score_batch(
    rewards: Sequence[Reward],
    batch: RewardBatch,
    task_column: str = "task",
    cache: RewardCache | None = None,
    weights: Mapping[str, float] | None = None,
) -> RewardTable:
    """Score a batch.

    Rewards without gates run first: coroutines, threads and processes side by side, and the inline ones meanwhile, in
    the caller's own thread. Those behind gates follow, on the rows that their gates let through.

    Args:
        weights: weights that replace those of the rewards, by name.

    Raises:
        RewardError: a reward raised or broke the contract, and has no other `on_error`.
    """
    done: dict[str, _RewardRun] = {}
    notes = Notes(len(batch))
    for wave in in_waves(rewards):
        scored = {name: run.scores for name, run in done.items()}
        runs = [_RewardRun(reward, batch, task_column, scored) for reward in wave]
        # In threads of their own, where they only wait.
        waiting = [
            start_thread(partial(run.run, cache), "covey-rewards") for run in runs if not run.reward.is_inline
        ]
        for run in runs:
            if run.reward.is_inline:
                run.run(cache)
        for _, outcome in waiting:
            outcome.result()
        for run in runs:
            done[run.reward.name] = run
            notes.take(run.notes, [[row] for row in range(len(batch))], owner=run.reward.name)

    replaced: Mapping[str, Weight] = weights or {}
    tasks = batch.columns.get(task_column) or [None] * len(batch)
    progress = progress_of(batch.trainer_state)
    return RewardTable(
        scores={r.name: done[r.name].scores for r in rewards},
        weights={
            r.name: [weight_at(replaced.get(r.name, r.options.weight), task, progress) for task in tasks]
            for r in rewards
        },
        extras=notes.extras,
        metrics=notes.all_metrics(),
        optional=frozenset(r.name for r in rewards if r.options.optional),
        counts={r.name: done[r.name].counts for r in rewards},
    )


class _RewardRun:
    """One reward on one batch: the rows that it is run for, and what comes back."""

    def __init__(
        self, reward: Reward, batch: RewardBatch, task_column: str, scored: Mapping[str, Sequence[Score]]
    ) -> None:
        self.reward, self.batch = reward, batch
        applicable = applicable_rows(reward, batch, task_column)
        gated = {row: gate_score(reward, row, scored) for row in applicable}
        self.rows = [row for row in applicable if gated[row] is None]
        self.scores = [gated.get(row) or NOT_APPLICABLE for row in range(len(batch))]
        self.counts, self.notes = CallCounts(num_run=len(self.rows)), Notes(len(batch))

    def run(self, cache: RewardCache | None) -> None:
        """Call the function, once for all rows or as often as its options ask for."""
        for asked, targets in self._calls(cache):
            is_whole = asked == list(range(len(self.batch)))
            started = time.perf_counter()
            scores, notes = call_guarded(
                self.reward, self.batch if is_whole else self.batch.select(asked), self.counts
            )
            self.counts.seconds += time.perf_counter() - started
            for score, rows in zip(scores, targets, strict=True):
                self.counts.num_faults += len(rows) if score.error is not None else 0
                for row in rows:
                    self.scores[row] = score
            self.notes.take(notes, targets)

    def _calls(self, cache: RewardCache | None) -> Iterator[tuple[list[int], list[list[int]]]]:
        """Yield the rows that each call is asked for, and for each of them the rows that its score holds for."""
        if not self.rows:
            return
        if self.reward.options.scope == "group":
            # Each group whole, siblings behind a closed gate included; their scores stay what the gate made them.
            wanted = set(self.rows)
            for group in groups_of(self.batch):
                if wanted.intersection(group):
                    yield group, [[row] if row in wanted else [] for row in group]
            return
        if not self.reward.options.pure:
            yield self.rows, [[row] for row in self.rows]
            return

        # Rows with the same content once, and none that the cache knows.
        keys = row_keys(self.reward, self.batch.select(self.rows))
        known = cache.get(self.reward, keys) if cache else [None] * len(keys)
        targets: dict[Key | int, list[int]] = {}
        for row, key, score in zip(self.rows, keys, known, strict=True):
            if score is not None:
                self.scores[row] = score
            else:
                targets.setdefault(row if key is None else key, []).append(row)
        self.counts.num_cached = len(self.rows) - len(targets)
        if targets:
            yield [rows[0] for rows in targets.values()], list(targets.values())
        if cache:  # the scores are there once the caller asks for the next call
            found = {key: self.scores[rows[0]] for key, rows in targets.items() if isinstance(key, bytes)}
            cache.put(self.reward, found)
