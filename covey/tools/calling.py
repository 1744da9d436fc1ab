"""Calls, wherever they run: started at once, asked for later, each with its own deadline.

A call never ends the run by itself: whatever a tool does becomes an `Outcome`. Ctrl-C alone passes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from covey.rewards.execution.faults import CallTimeout
from covey.rewards.execution.loop import awaited, event_loop, is_pending, settled
from covey.types import CallStatus

if TYPE_CHECKING:
    from covey.tools.tool_contract import Tool

POLL = 0.05
"""Seconds between two looks at a call that has not begun to run."""
MAX_GIVEN_UP = 16
"""Calls of a tool that may still run after they were given up; with more, it is not called."""
GRACE = 1.0
"""Seconds that a coroutine may take, past its deadline, to hear that it is cancelled. One that blocks its loop never does."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a call, or what kept it from one."""

    status: CallStatus
    value: object = None
    error: BaseException | None = None
    message: str | None = None
    """What went wrong, where no exception says it."""
    seconds: float = 0.0

    def taken(self) -> Outcome:
        """Return this; raise Ctrl-C, where that is what came."""
        if isinstance(self.error, KeyboardInterrupt):
            raise self.error
        return self


class RunningCall(Protocol):
    """A call that has been started."""

    def ready(self) -> bool:
        """Return whether `outcome` returns at once."""
        ...

    def outcome(self) -> Outcome:
        """Return what the call came to, and wait for it where it is late."""
        ...

    def goes_on(self) -> bool:
        """Return whether it still runs though it was given up."""
        ...


@dataclass(frozen=True)
class DoneCall:
    """A call that is over."""

    result: Outcome

    def ready(self) -> bool:
        return True

    def outcome(self) -> Outcome:
        return self.result

    def goes_on(self) -> bool:
        return False


def outcome_of(work: Callable[[], object]) -> Outcome:
    """Do the work; return what it came to, Ctrl-C included."""
    began = time.monotonic()
    try:
        outcome = Outcome("ok", work())
    except CallTimeout as error:
        outcome = Outcome("timeout", message=str(error))
    except BaseException as error:  # code of others: sys.exit(), and whatever native code raises
        outcome = Outcome("raised", error=error)
    return replace(outcome, seconds=time.monotonic() - began)


class Caller:
    """Starts calls; holds what they share.

    Args:
        concurrency: calls that run at once in threads and processes, and as coroutines.
    """

    def __init__(self, concurrency: int) -> None:
        self._threads = threading.BoundedSemaphore(concurrency)
        self._coroutines = asyncio.Semaphore(concurrency)
        self._blocking: list[LoopCall] = []
        self._given_up: dict[str, list[threading.Thread]] = {}
        self._processes: dict[str, ToolProcesses] = {}

    def start(
        self, tool: Tool, function: Callable[..., Any], arguments: Mapping[str, Any], seconds: float | None
    ) -> RunningCall:
        """Start a call of a tool.

        Args:
            function: the tool's function, or the method of an instance.
            seconds: the deadline, from when it begins to run; one that runs inline has none.
        """
        if tool.options.where == "process":
            work = self._process_work(tool, arguments, seconds)
            return ThreadCall(work, None, self._threads, tool.name)
        if tool.options.where == "thread":
            return self._in_thread(tool, lambda: function(**arguments), seconds)
        outcome = outcome_of(lambda: function(**arguments)).taken()
        if outcome.status == "ok" and is_pending(outcome.value):
            return LoopCall(outcome.value, seconds, self._coroutines, self._blocking)
        return DoneCall(outcome)

    def close(self) -> None:
        """End all processes."""
        for processes in self._processes.values():
            processes.close()
        self._processes.clear()

    def _in_thread(self, tool: Tool, work: Callable[[], object], seconds: float | None) -> RunningCall:
        left = self._given_up.setdefault(tool.name, [])
        left[:] = [thread for thread in left if thread.is_alive()]
        if len(left) >= MAX_GIVEN_UP:
            return DoneCall(
                Outcome(
                    "timeout", message=f"not called: {len(left)} earlier calls still run past their deadline"
                )
            )
        return ThreadCall(work, seconds, self._threads, tool.name, left)

    def _process_work(
        self, tool: Tool, arguments: Mapping[str, Any], seconds: float | None
    ) -> Callable[[], object]:
        processes = self._processes.get(tool.name)
        if processes is None:
            processes = self._processes[tool.name] = ToolProcesses(tool)
        return lambda: processes.call(arguments, seconds)


class WaitedCall(ABC):
    """A call that is waited for until its deadline, and then given up."""

    _future: Future[Outcome]

    def ready(self) -> bool:
        return self._future.done() or self._left() == 0.0

    def outcome(self) -> Outcome:
        while not self._future.done():
            left = self._left()
            if left == 0.0:
                return self._give_up()
            try:
                self._future.result(left)
            except NotYet:
                continue
        return self._future.result().taken()

    @abstractmethod
    def _left(self) -> float:
        """Return the seconds until nobody waits any more."""

    @abstractmethod
    def _give_up(self) -> Outcome:
        """Return the outcome of a call that nobody waits for any more."""


class LoopCall(WaitedCall):
    """A coroutine on the loop that all calls share.

    Args:
        blocking: gets this call, if it is given up while it blocks the loop; those behind it are given up too.
    """

    def __init__(
        self, pending: object, seconds: float | None, gate: asyncio.Semaphore, blocking: list[LoopCall]
    ) -> None:
        self._seconds, self._gate, self._blocking = seconds, gate, blocking
        self._began: float | None = None
        self._is_over = False
        self._future = event_loop().submit(self._limited(pending))

    def goes_on(self) -> bool:
        return self._began is not None and not self._is_over

    def _left(self) -> float:
        # A coroutine comes to its end by itself, unless it blocks its loop.
        if self._began is None:
            is_blocked = any(not call._is_over for call in self._blocking)
            return 0.0 if is_blocked else POLL
        if self._seconds is None:
            return POLL
        return max(0.0, self._began + self._seconds + GRACE - time.monotonic())

    def _give_up(self) -> Outcome:
        self._future.cancel()
        if self._began is None:
            return timed_out(None, "an earlier call blocks the event loop")
        self._blocking.append(self)
        return timed_out(self._seconds, "it blocks the event loop, which cannot cancel it")

    async def _limited(self, pending: object) -> Outcome:
        async with self._gate:
            self._began = began = time.monotonic()
            limit = asyncio.timeout(self._seconds)
            try:
                async with limit:
                    outcome = Outcome("ok", await settled(pending))
            except BaseException as error:  # as in `outcome_of`; the loop must not end with it
                if isinstance(error, TimeoutError) and limit.expired():
                    return timed_out(self._seconds)
                outcome = Outcome("raised", error=error)
            finally:
                self._is_over = True
            return replace(outcome, seconds=time.monotonic() - began)


class ThreadCall(WaitedCall):
    """A call in a thread of its own, which nobody waits for at the end of the run.

    Args:
        gate: entered by the thread, and left when the call is over or given up.
        given_up: gets the thread, if it is given up.
    """

    def __init__(
        self,
        work: Callable[[], object],
        seconds: float | None,
        gate: threading.Semaphore,
        name: str,
        given_up: list[threading.Thread] | None = None,
    ) -> None:
        self._seconds, self._gate = seconds, gate
        self._given_up = [] if given_up is None else given_up
        self._began: float | None = None
        self._lock, self._is_inside = threading.Lock(), False
        self._future = Future()
        self._thread = threading.Thread(
            target=self._run, args=(work,), name=f"covey-tool-{name}", daemon=True
        )
        self._thread.start()

    def goes_on(self) -> bool:
        return not self._future.done()

    def _left(self) -> float:
        if self._seconds is None or self._began is None:
            return POLL
        return max(0.0, self._began + self._seconds - time.monotonic())

    def _give_up(self) -> Outcome:
        self._leave()
        self._given_up.append(self._thread)
        return timed_out(self._seconds)

    def _run(self, work: Callable[[], object]) -> None:
        self._gate.acquire()
        self._is_inside, self._began = True, time.monotonic()
        outcome = outcome_of(lambda: awaited(work()))
        self._leave()
        self._future.set_result(outcome)

    def _leave(self) -> None:
        with self._lock:
            if self._is_inside:
                self._is_inside = False
                self._gate.release()


def timed_out(seconds: float | None, why: str = "") -> Outcome:
    """Return the outcome of a call that was given up."""
    return Outcome(
        "timeout",
        message=f"no result within {seconds} s" + (f": {why}" if why else ""),
        seconds=seconds or 0.0,
    )


class ToolProcesses:
    """Processes that hold one tool's function, each serving one call at a time; as many as calls run at once."""

    def __init__(self, tool: Tool) -> None:
        from covey.rewards.execution.process import pickled_function

        self._payload = pickled_function(tool.function, f"Tool {tool.name!r}")
        self._free: list[Any] = []
        self._all: list[Any] = []
        self._lock = threading.Lock()

    def call(self, arguments: Mapping[str, Any], seconds: float | None) -> object:
        """Return what the function returns in a process; raise what it raises, or CallTimeout when it was killed."""
        from covey.tools.own_process import call_in

        session = self._taken()
        try:
            return call_in(session, arguments, seconds)
        finally:
            with self._lock:
                self._free.append(session)

    def close(self) -> None:
        for session in self._all:
            session.close()

    def _taken(self) -> Any:
        from covey.tools.own_process import new_session

        with self._lock:
            if self._free:
                return self._free.pop()
            session = new_session(self._payload)
            self._all.append(session)
            return session
