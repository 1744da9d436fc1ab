"""Runs every reward over a batch: coroutines together, functions meanwhile, one table at the end.

An exception of a reward stops the run with the reward's name, the first sample and the traceback; that is the default
for programming errors, because a reward that silently scores 0 is worse than a run that stops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from covey.errors import RewardError
from covey.groups import Score
from covey.rewards.batch import Notes, RewardBatch, RewardTable
from covey.rewards.reward import Reward


def evaluate(rewards: Sequence[Reward], weights: Mapping[str, float], batch: RewardBatch) -> RewardTable:
    """Score a batch with every reward.

    Raises:
        RewardError: a reward raised, or broke the contract; the message names it.
    """
    notes = Notes(len(batch))
    running = {r.name: _loop().submit(_call_async(r, batch, notes)) for r in rewards if r.is_async}
    columns = {r.name: _call(r, batch, notes) for r in rewards if not r.is_async}
    columns |= {name: future.result() for name, future in running.items()}
    return RewardTable(
        scores={r.name: columns[r.name] for r in rewards},
        weights=dict(weights),
        extras=notes.extras,
        metrics=notes.metrics,
    )


def _call(reward: Reward, batch: RewardBatch, notes: Notes) -> list[Score]:
    try:
        return reward.scores(reward.call(batch, notes), len(batch))
    except RewardError:
        raise
    except Exception as error:
        raise _raised(reward, error, batch) from error


async def _call_async(reward: Reward, batch: RewardBatch, notes: Notes) -> list[Score]:
    try:
        return reward.scores(await reward.call(batch, notes), len(batch))
    except RewardError:
        raise
    except Exception as error:
        raise _raised(reward, error, batch) from error


def _raised(reward: Reward, error: Exception, batch: RewardBatch) -> RewardError:
    first = repr(batch.completions[0])[:200] if len(batch) else "none"
    return RewardError(
        f"Reward {reward.name!r} raised {type(error).__name__}: {error}. It was called with {len(batch)} completions; "
        f"the first is {first}. The traceback above shows where."
    )


class _EventLoop:
    """One event loop in a thread of its own.

    Coroutines of rewards run on the same loop for the whole run, so that clients they hold stay usable, and they run
    when the caller is itself inside a running loop, as in a notebook.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="covey-rewards", daemon=True).start()

    def submit(self, coroutine: Coroutine[Any, Any, list[Score]]) -> Future[list[Score]]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


_event_loop: _EventLoop | None = None


def _loop() -> _EventLoop:
    global _event_loop
    if _event_loop is None:
        _event_loop = _EventLoop()
    return _event_loop
