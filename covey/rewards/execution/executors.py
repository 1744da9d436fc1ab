"""The places where a reward can run. Each takes a reward, a batch and notes, and gives what the function returned."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from covey.rewards.batch import Notes, RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.execution.faults import CallLost, CallTimeout
from covey.rewards.execution.loop import event_loop
from covey.rewards.execution.process import call_in_process
from covey.rewards.execution.sandboxed import call_in_sandbox

Place = Callable[[Reward, RewardBatch, Notes], Any]

MAX_GIVEN_UP = 16
"""Calls of a reward that may still run after they were given up; with more, it is not called."""


def place_of(reward: Reward) -> Place:
    """Where a reward runs."""
    if reward.is_async:
        return call_on_loop
    return {
        "inline": call_inline,
        "thread": call_in_thread,
        "process": call_in_process,
        "sandbox": call_in_sandbox,
    }[reward.options.where]


def call_inline(reward: Reward, batch: RewardBatch, notes: Notes) -> Any:
    return reward.call(batch, notes)


def call_on_loop(reward: Reward, batch: RewardBatch, notes: Notes) -> Any:
    """Wait for a coroutine; at the deadline it is cancelled."""

    async def limited() -> Any:
        return await asyncio.wait_for(reward.call(batch, notes), reward.options.timeout)

    future = event_loop().submit(limited())
    try:
        return future.result()
    except TimeoutError:
        if reward.options.timeout is None:
            raise
        raise CallTimeout(f"cancelled after {reward.options.timeout} s") from None
    finally:
        future.cancel()


_given_up: dict[str, list[threading.Thread]] = {}


def call_in_thread(reward: Reward, batch: RewardBatch, notes: Notes) -> Any:
    """Wait for a thread; at the deadline it is given up, and runs on."""
    _check_given_up(reward)
    own_notes = Notes(notes.size)  # a thread that was given up must not write into a later batch's record
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((True, reward.call(batch, own_notes)))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=run, name=f"covey-reward-{reward.name}", daemon=True)
    thread.start()
    thread.join(reward.options.timeout)
    if not outcome:
        event_loop().cancel(thread)  # a judge's requests end; what cannot be interrupted runs on
        _given_up.setdefault(reward.name, []).append(thread)
        raise CallTimeout(f"given up after {reward.options.timeout} s; its thread runs on")
    fine, value = outcome[0]
    if not fine:
        raise value
    notes.take(own_notes, [[row] for row in range(notes.size)])
    return value


def _check_given_up(reward: Reward) -> None:
    running = [thread for thread in _given_up.get(reward.name, []) if thread.is_alive()]
    _given_up[reward.name] = running
    if len(running) >= MAX_GIVEN_UP:
        raise CallLost(
            f"not called: {len(running)} calls that were given up after {reward.options.timeout} s still run, and threads "
            "cannot be killed. Use where='process'."
        )
