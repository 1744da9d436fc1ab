"""Watch over the failures of rewards: warns of the first of each, and stops a run whose rewards have stopped working."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from covey.errors import RewardError, warn
from covey.rewards.batch import CallCounts, RewardTable
from covey.rewards.contract import Reward
from covey.types import Score

Recent = deque[tuple[int, int]]
"""(hits, samples) of the last batches, the oldest first."""
Pairs = Sequence[Sequence[int]]
"""The same as plain values."""


class BreakerState(TypedDict):
    """Shares that were seen so far, as plain values."""

    failures: Mapping[str, Pairs]
    covered: Pairs


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
        self._failures: dict[str, Recent] = {}
        self._covered: Recent = deque()
        self._warned: set[str] = set()

    def state(self) -> BreakerState:
        """Return what was seen so far, as plain values."""
        failures = {name: list(map(list, recent)) for name, recent in self._failures.items()}
        return {"failures": failures, "covered": list(map(list, self._covered))}

    def restore(self, state: BreakerState) -> None:
        """Go on from what `state` returned."""
        self._failures = {name: deque((h, n) for h, n in pairs) for name, pairs in state["failures"].items()}
        self._covered = deque((hits, samples) for hits, samples in state["covered"])

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
            recent = self._failures.setdefault(name, deque())
            share, seen = add_batch(recent, counts.num_faults, counts.num_run, self.window)
            if seen >= self.window and share > self.max_failure_rate:
                raise RewardError(
                    f"Reward {name!r} failed on {share:.0%} of the last {seen} samples, more than "
                    f"max_failure_rate={self.max_failure_rate:.0%}. The last failure: {_last_error(table.scores[name])}. A "
                    "reward that does not apply to a sample returns None."
                )
        num_scored = sum(table.total(row) is not None for row in range(size))
        share, seen = add_batch(self._covered, num_scored, size, self.window)
        if seen >= self.window and share < self.min_coverage:
            raise RewardError(
                f"Only {share:.0%} of the last {seen} samples were scored, less than "
                f"min_coverage={self.min_coverage:.0%}. Look at the rewards' failed and applicable shares."
            )


def add_batch(recent: Recent, hits: int, samples: int, window: int) -> tuple[float, int]:
    """Add a batch and drop those that `window` samples do without; return the share of hits in what is left, and its size."""
    if samples:
        recent.append((hits, samples))
    seen = sum(size for _, size in recent)
    while recent and seen - recent[0][1] >= window:
        seen -= recent.popleft()[1]
    return (sum(found for found, _ in recent) / seen if seen else 0.0), seen


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
