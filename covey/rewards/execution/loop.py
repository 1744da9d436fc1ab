"""One event loop in a thread of its own, for whatever a reward returns that must be waited for."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from covey.errors import RewardError

T = TypeVar("T")


class EventLoop:
    """Coroutines of rewards run on the same loop for the whole run.

    So clients that they hold stay usable, and they run when the caller is itself inside a running loop, as in a
    notebook.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.owner = os.getpid()
        self._awaited: dict[threading.Thread, Future[Any]] = {}
        self._given_up = weakref.WeakSet[threading.Thread]()
        threading.Thread(target=self.loop.run_forever, name="covey-rewards", daemon=True).start()

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Wait for a coroutine in the calling thread; `cancel` of that thread ends both, whichever comes first."""
        future = self.submit(coroutine)
        self._awaited[threading.current_thread()] = future
        if threading.current_thread() in self._given_up:
            future.cancel()
        try:
            return future.result()
        finally:
            future.cancel()
            del self._awaited[threading.current_thread()]

    def cancel(self, thread: threading.Thread) -> None:
        """Cancel the coroutine that a thread waits for in `run`, and those that it comes to wait for."""
        self._given_up.add(thread)
        future = self._awaited.get(thread)
        if future is not None:
            future.cancel()


_event_loop: EventLoop | None = None
_lock = threading.Lock()


def event_loop() -> EventLoop:
    """Return the loop of this process; a fork gets one of its own."""
    global _event_loop
    with _lock:
        if _event_loop is None or _event_loop.owner != os.getpid():
            _event_loop = EventLoop()
        return _event_loop


def awaited(result: object) -> object:
    """Return what the result of a call comes to. What it is decides, not what kind of function it is.

    Waited for are coroutines, tasks and futures, also those of a thread pool, lists of these, and asynchronous generators.

    Raises:
        RewardError: a task of an event loop that runs in this very thread: it could never be waited for.
    """
    if not (is_pending(result) or (isinstance(result, list | tuple) and any(map(is_pending, result)))):
        return result
    parts = result if isinstance(result, list | tuple) else (result,)
    loop = next((part.get_loop() for part in parts if asyncio.isfuture(part)), event_loop().loop)
    if loop is event_loop().loop:
        return event_loop().run(settled(result))
    if loop.is_running():
        return _of_another_loop(result, loop)
    return loop.run_until_complete(settled(result))  # the reward made it, and left it to us


def _of_another_loop(result: object, loop: asyncio.AbstractEventLoop) -> object:
    """Wait for tasks of a loop that runs in another thread; raise where it runs in this one."""
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_here = False
    if is_here:
        raise RewardError(
            "A reward returned a task of the event loop that the training itself runs in, and each would wait for the "
            "other. Return the coroutine: Covey awaits it."
        )
    return asyncio.run_coroutine_threadsafe(settled(result), loop).result()


async def settled(result: Any) -> object:
    """Return a result when everything in it that must be waited for is there."""
    if isinstance(result, Future):
        result = asyncio.wrap_future(result)
    if inspect.isawaitable(result):
        return await settled(await result)
    if hasattr(result, "__aiter__"):
        return [value async for value in result]
    if isinstance(result, list | tuple) and any(map(is_pending, result)):
        return list(await asyncio.gather(*map(settled, result)))
    return result


def is_pending(value: object) -> bool:
    """Return whether a value must be waited for."""
    return inspect.isawaitable(value) or isinstance(value, Future) or hasattr(type(value), "__aiter__")
