"""Stops a run whose rewards have stopped working."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.errors import RewardError, warn
from covey.rewards.batch import RewardTable
from covey.rewards.contract import Reward
from covey.rewards.score_batch import Column


@dataclass
class Window:
    """Shares over the last samples: how many of how many, batch by batch."""

    size: int
    counts: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, hits: int, total: int) -> None:
        if total:
            self.counts.append((hits, total))
        while self.total - (self.counts[0][1] if self.counts else 0) >= self.size:
            self.counts.popleft()

    @property
    def total(self) -> int:
        return sum(total for _, total in self.counts)

    @property
    def share(self) -> float:
        return sum(hits for hits, _ in self.counts) / self.total if self.total else 0.0

    @property
    def is_full(self) -> bool:
        return self.total >= self.size


class Breaker:
    """Watches how often rewards fail, and how many samples are scored at all.

    Args:
        max_failure_rate: largest share of samples on which a reward may fail, over `window` samples.
        min_coverage: smallest share of samples that some reward scored, over `window` samples.
        window: samples; before that many were seen, nothing is stopped.
    """

    def __init__(self, max_failure_rate: float, min_coverage: float, window: int) -> None:
        for name, share in (("max_failure_rate", max_failure_rate), ("min_coverage", min_coverage)):
            if not 0 <= share <= 1:
                raise RewardError(f"{name}={share}: a share is in [0, 1].")
        if window < 1:
            raise RewardError(f"window={window}: at least one sample.")
        self.max_failure_rate, self.min_coverage, self.window = max_failure_rate, min_coverage, window
        self._failures: dict[str, Window] = {}
        self._covered = Window(window)

    def state(self) -> dict[str, Any]:
        """What was seen so far, as plain values."""
        failures = {name: _pairs(seen) for name, seen in self._failures.items()}
        return {"failures": failures, "covered": _pairs(self._covered)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._failures = {name: self._window(pairs) for name, pairs in state["failures"].items()}
        self._covered = self._window(state["covered"])

    def _window(self, pairs: Iterable[Iterable[int]]) -> Window:
        return Window(self.window, deque((hits, total) for hits, total in pairs))

    def watch(self, columns: Mapping[str, Column], table: RewardTable, size: int) -> None:
        """Take a batch into account.

        Raises:
            RewardError: a limit is passed.
        """
        for name, column in columns.items():
            seen = self._failures.setdefault(name, Window(self.window))
            seen.add(column.num_faults, column.num_run)
            if seen.is_full and seen.share > self.max_failure_rate:
                raise RewardError(
                    f"Reward {name!r} failed on {seen.share:.0%} of the last {seen.total} samples, more than "
                    f"max_failure_rate={self.max_failure_rate:.0%}. The last failure: {_last(column)}. A reward that does "
                    "not apply to a sample returns None."
                )
        self._covered.add(sum(table.total(row) is not None for row in range(size)), size)
        if self._covered.is_full and self._covered.share < self.min_coverage:
            raise RewardError(
                f"Only {self._covered.share:.0%} of the last {self._covered.total} samples were scored, less than "
                f"min_coverage={self.min_coverage:.0%}. Look at the rewards' failed and applicable shares."
            )


def _pairs(seen: Window) -> list[list[int]]:
    return [list(pair) for pair in seen.counts]


def _last(column: Column) -> str:
    said = [score.error for score in column.scores if score.error is not None]
    return said[-1] if said else "in an earlier batch"


class FirstFailures:
    """Says once per reward that it failed: `max_failure_rate` speaks only after a whole window of samples."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, rewards: Iterable[Reward], columns: Mapping[str, Column]) -> None:
        """Warn of each reward that failed in a batch for the first time."""
        for reward in rewards:
            column = columns[reward.name]
            if column.num_faults and reward.name not in self._told:
                self._told.add(reward.name)
                error = _last(column).rstrip(".")
                warn(
                    f"Reward {reward.name!r} failed on {column.num_faults} of {column.num_run} samples: {error}. "
                    f"{_consequence(reward, column)} This is said once; rewards/{reward.name}/failed counts on."
                )


def _consequence(reward: Reward, column: Column) -> str:
    value = next(score.value for score in column.scores if score.error is not None)
    if value is not None:
        return f"Such a sample counts as {value:g} (on_error={reward.options.on_error!r})."
    if reward.options.optional:
        return "Such a sample counts without it (optional=True)."
    return "Such a sample is left out of the step."
