"""One reward over some rows, whatever happens: scores, and counts of what went wrong."""

from __future__ import annotations

from covey.errors import RewardError
from covey.rewards.batch import CallCounts, Notes, RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.execution.executors import executor_of
from covey.rewards.execution.faults import FAULTS, CallTimeout
from covey.rewards.execution.loop import awaited
from covey.text.foreign import made_fit
from covey.text.secrets import without_secrets
from covey.types import Score


def call_guarded(reward: Reward, batch: RewardBatch, counts: CallCounts) -> tuple[list[Score], Notes]:
    """Call a reward with a batch; what goes wrong becomes scores, as `on_error` says, and is counted.

    A call of several samples that raised is repeated sample by sample, to find the ones concerned. One that ran out of
    time is not: each repetition could take as long.

    Args:
        counts: its `num_errors` and `num_timeouts` grow.

    Returns:
        One score per completion, and what the reward noted.

    Raises:
        RewardError: something went wrong and `on_error` is `raise`.
    """
    notes = Notes(len(batch))
    try:
        if reward.is_inline:
            result = awaited(reward.function(**reward.arguments(batch, notes)))
        else:
            result = executor_of(reward)(reward, batch, notes)
        values = reward.values(result, len(batch))
    except FAULTS as error:
        return _scores_after_fault(reward, batch, counts, error)
    scores = []
    for row, value in enumerate(values):
        try:
            if isinstance(value, BaseException):  # an executor that went sample by sample
                raise value
            scores.append(reward.score(value, row, batch.turns[row] if batch.turns else None))
        except FAULTS as error:
            scores.append(_fault_score(reward, batch.select([row]), counts, error))
    return scores, notes


def _scores_after_fault(
    reward: Reward, batch: RewardBatch, counts: CallCounts, error: BaseException
) -> tuple[list[Score], Notes]:
    """Return the scores of a call that raised: the same for all its samples, or those of a call for each of them."""
    notes = Notes(len(batch))
    can_be_split = reward.options.scope == "sample" and len(batch) > 1
    if reward.options.on_error == "raise" or isinstance(error, CallTimeout) or not can_be_split:
        return [_fault_score(reward, batch, counts, error) for _ in range(len(batch))], notes
    scores = []
    for row in range(len(batch)):
        alone, noted = call_guarded(reward, batch.select([row]), counts)
        scores += alone
        notes.take(noted, [[row]])
    return scores, notes


def _fault_score(reward: Reward, concerned: RewardBatch, counts: CallCounts, error: BaseException) -> Score:
    """Return the score of one sample on which the reward failed, and count it; raise where `on_error` says so."""
    on_error = reward.options.on_error
    if on_error == "raise":
        if isinstance(error, RewardError):
            raise error
        first, size = repr(concerned.completions[0])[:200], len(concerned)
        raise RewardError(
            f"Reward {reward.name!r} raised {type(error).__name__}: {error}. It was called with {size} "
            f"completion{'s' if size != 1 else ''}; the first is {first}. The traceback above shows where."
        ) from made_fit(error)
    if isinstance(error, CallTimeout):
        counts.num_timeouts += 1
    else:
        counts.num_errors += 1
    text = without_secrets(f"{type(error).__name__}: {error}"[:5_000])[:500]
    if on_error == "missing":
        return Score(None, "failed", text)
    return Score(0.0 if on_error == "zero" else float(on_error), error=text)
