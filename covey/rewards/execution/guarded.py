"""One reward over some rows, whatever happens: scores, faults, seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from covey.errors import RewardError
from covey.rewards.batch import Notes, RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.execution.executors import place_of
from covey.rewards.execution.faults import FAULTS, CallTimeout
from covey.types import Score


@dataclass
class Scored:
    """What a reward gave some rows."""

    scores: list[Score]
    num_errors: int = 0
    num_timeouts: int = 0
    seconds: float = 0.0
    notes: Notes = field(default_factory=lambda: Notes(0))

    @property
    def num_faults(self) -> int:
        return self.num_errors + self.num_timeouts


def call_guarded(reward: Reward, batch: RewardBatch) -> Scored:
    """Call a reward with a batch; what goes wrong becomes scores, as `on_error` says.

    A call of several samples that raised is repeated sample by sample, to find the ones concerned. One that ran out of
    time is not: each repetition could take as long.

    Raises:
        RewardError: something went wrong and `on_error` is `raise`.
    """
    started = time.perf_counter()
    try:
        scored = _call(reward, batch)
    except FAULTS as error:
        scored = _after_fault(reward, batch, error)
    scored.seconds = time.perf_counter() - started
    return scored


def _call(reward: Reward, batch: RewardBatch) -> Scored:
    notes = Notes(len(batch))
    values = reward.values(place_of(reward)(reward, batch, notes), len(batch))
    scored = Scored([], notes=notes)
    for row, value in enumerate(values):
        try:
            if isinstance(value, BaseException):  # a place that went sample by sample
                raise value
            scored.scores.append(reward.score(value, row))
        except FAULTS as error:
            _add_fault(scored, reward, batch.select([row]), error)
    return scored


def _after_fault(reward: Reward, batch: RewardBatch, error: BaseException) -> Scored:
    scored = Scored([], notes=Notes(len(batch)))
    can_be_split = reward.options.scope == "sample" and len(batch) > 1
    if reward.options.on_error == "raise" or isinstance(error, CallTimeout) or not can_be_split:
        for _ in range(len(batch)):
            _add_fault(scored, reward, batch, error)
        return scored
    for row in range(len(batch)):
        alone = call_guarded(reward, batch.select([row]))
        scored.scores += alone.scores
        scored.num_errors += alone.num_errors
        scored.num_timeouts += alone.num_timeouts
        scored.notes.take(alone.notes, [[row]])
    return scored


def _add_fault(scored: Scored, reward: Reward, concerned: RewardBatch, error: BaseException) -> None:
    """One more sample on which the reward failed.

    Raises:
        RewardError: `on_error` is `raise`.
    """
    if reward.options.on_error == "raise":
        raise error if isinstance(error, RewardError) else _raised(reward, error, concerned) from error
    text = f"{type(error).__name__}: {error}"[:500]
    if isinstance(error, CallTimeout):
        scored.num_timeouts += 1
    else:
        scored.num_errors += 1
    scored.scores.append(_score_of_fault(reward, text))


def _score_of_fault(reward: Reward, text: str) -> Score:
    on_error = reward.options.on_error
    if on_error == "missing":
        return Score(None, "failed", text)
    return Score(0.0 if on_error == "zero" else float(on_error), error=text)


def _raised(reward: Reward, error: BaseException, batch: RewardBatch) -> RewardError:
    first = repr(batch.completions[0])[:200] if len(batch) else "none"
    return RewardError(
        f"Reward {reward.name!r} raised {type(error).__name__}: {error}. It was called with {len(batch)} "
        f"completion{'s' if len(batch) != 1 else ''}; the first is {first}. The traceback above shows where."
    )
