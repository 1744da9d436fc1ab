"""Watch over the failures of rewards: warns of the first of each, and stops a run whose rewards have stopped working."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from covey.errors import RewardError, warn
from covey.rewards.batch import CallCounts, RewardTable
from covey.rewards.contract import Reward
from covey.types import Score

Pairs = Sequence[Sequence[int]]
"""(hits, samples) of each batch, the oldest first."""


class BreakerState(TypedDict):
    """Shares that were seen so far, as plain values."""

    failures: dict[str, Pairs]
    covered: Pairs


@dataclass
class RecentShare:
    """Share over the last samples: how many of how many, batch by batch."""

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

    def state(self) -> Pairs:
        return [list(pair) for pair in self.counts]


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
        self._failures: dict[str, RecentShare] = {}
        self._covered = RecentShare(window)
        self._warned: set[str] = set()

    def state(self) -> BreakerState:
        """Return what was seen so far, as plain values."""
        failures = {name: seen.state() for name, seen in self._failures.items()}
        return {"failures": failures, "covered": self._covered.state()}

    def restore(self, state: BreakerState) -> None:
        """Go on from what `state` returned."""

        def seen(pairs: Pairs) -> RecentShare:
            return RecentShare(self.window, deque((hits, total) for hits, total in pairs))

        self._failures = {name: seen(pairs) for name, pairs in state["failures"].items()}
        self._covered = seen(state["covered"])

    def watch(self, rewards: Iterable[Reward], table: RewardTable, size: int) -> None:
        """Take a batch of `size` samples into account.

        A reward that fails for the first time is warned of at once: the limits hold only after `window` samples.

        Raises:
            RewardError: a limit is passed.
        """
        for reward in rewards:
            counts, scores = table.counts[reward.name], table.scores[reward.name]
            if counts.num_faults and reward.name not in self._warned:
                self._warned.add(reward.name)
                warn(_first_failure(reward, counts, scores))
        for name, counts in table.counts.items():
            seen = self._failures.setdefault(name, RecentShare(self.window))
            seen.add(counts.num_faults, counts.num_run)
            if seen.is_full and seen.share > self.max_failure_rate:
                raise RewardError(
                    f"Reward {name!r} failed on {seen.share:.0%} of the last {seen.total} samples, more than "
                    f"max_failure_rate={self.max_failure_rate:.0%}. The last failure: {_last_error(table.scores[name])}. A "
                    "reward that does not apply to a sample returns None."
                )
        self._covered.add(sum(table.total(row) is not None for row in range(size)), size)
        if self._covered.is_full and self._covered.share < self.min_coverage:
            raise RewardError(
                f"Only {self._covered.share:.0%} of the last {self._covered.total} samples were scored, less than "
                f"min_coverage={self.min_coverage:.0%}. Look at the rewards' failed and applicable shares."
            )


def _last_error(scores: Sequence[Score]) -> str:
    errors = [score.error for score in scores if score.error is not None]
    return errors[-1] if errors else "in an earlier batch"


def _first_failure(reward: Reward, counts: CallCounts, scores: Sequence[Score]) -> str:
    """Build the warning of a reward's first failure: how often, why, and what becomes of such samples."""
    value = next(score.value for score in scores if score.error is not None)
    if value is not None:
        consequence = f"counts as {value:g} (on_error={reward.options.on_error!r})"
    elif reward.options.optional:
        consequence = "counts without it (optional=True)"
    else:
        consequence = "is left out of the step"
    return (
        f"Reward {reward.name!r} failed on {counts.num_faults} of {counts.num_run} samples: "
        f"{_last_error(scores).rstrip('.')}. Such a sample {consequence}. This is said once; "
        f"rewards/{reward.name}/failed counts on."
    )
