"""Executors of rewards that do not run inline: event loop, thread, process, sandbox.

Each takes a reward, a batch and notes, and returns the result of the function.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from covey.rewards.batch import Notes, RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.execution.faults import CallLost, CallTimeout
from covey.rewards.execution.loop import awaited, event_loop, settled

T = TypeVar("T")
Executor = Callable[[Reward, RewardBatch, Notes], object]

MAX_GIVEN_UP = 16
"""Calls of a reward that may still run after they were given up; with more, it is not called."""


def executor_of(reward: Reward) -> Executor:
    """Return the executor of a reward that does not run inline.

    Processes and the sandbox are imported on first use: most runs start neither.
    """
    if reward.is_async:
        return call_on_loop
    if reward.options.where == "process":
        from covey.rewards.execution.process import call_in_process

        return call_in_process
    if reward.options.where == "sandbox":
        from covey.rewards.execution.sandboxed import call_in_sandbox

        return call_in_sandbox
    return call_in_thread


def call_on_loop(reward: Reward, batch: RewardBatch, notes: Notes) -> object:
    """Wait for a coroutine; at the deadline it is cancelled."""

    async def limited() -> object:
        call = settled(reward.function(**reward.arguments(batch, notes)))
        return await asyncio.wait_for(call, reward.options.timeout)

    try:
        return event_loop().run(limited())
    except TimeoutError:
        if reward.options.timeout is None:
            raise
        raise CallTimeout(f"cancelled after {reward.options.timeout} s") from None


_given_up: dict[str, list[threading.Thread]] = {}


def call_in_thread(reward: Reward, batch: RewardBatch, notes: Notes) -> object:
    """Wait for a thread; at the deadline it is given up, and runs on."""
    running = [thread for thread in _given_up.get(reward.name, []) if thread.is_alive()]
    _given_up[reward.name] = running
    if len(running) >= MAX_GIVEN_UP:
        raise CallLost(
            f"not called: {len(running)} calls that were given up after {reward.options.timeout} s still run, and threads "
            "cannot be killed. Use where='process'."
        )
    own_notes = Notes(notes.size)  # a thread that was given up must not write into a later batch's record
    arguments, name = reward.arguments(batch, own_notes), f"covey-reward-{reward.name}"
    thread, outcome = start_thread(lambda: awaited(reward.function(**arguments)), name)
    thread.join(reward.options.timeout)
    if not outcome.done():
        event_loop().cancel(thread)  # a judge's requests end; what cannot be interrupted runs on
        _given_up.setdefault(reward.name, []).append(thread)
        raise CallTimeout(f"given up after {reward.options.timeout} s; its thread runs on")
    value = outcome.result()
    notes.take(own_notes, [[row] for row in range(notes.size)])
    return value


def start_thread(work: Callable[[], T], name: str) -> tuple[threading.Thread, Future[T]]:
    """Start a daemon, so that nobody waits for it at the end; return it, and the result or exception of `work` to come."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread, outcome
