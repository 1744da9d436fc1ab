"""One event loop in a thread of its own, for rewards that are coroutine functions."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

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
        threading.Thread(target=self.loop.run_forever, name="covey-rewards", daemon=True).start()

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Wait for a coroutine in the calling thread; `cancel` of that thread ends both."""
        future = self.submit(coroutine)
        self._awaited[threading.current_thread()] = future
        try:
            return future.result()
        finally:
            future.cancel()
            del self._awaited[threading.current_thread()]

    def cancel(self, thread: threading.Thread) -> None:
        """Cancel the coroutine that a thread waits for in `run`, where it does."""
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
