"""Session: functions that stay loaded in a child, called one at a time, each call with a deadline of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from covey.rewards.sandbox.calls import ended_verdict, is_message, raised_verdict, start_fault
from covey.rewards.sandbox.child import Child, ChildEnded, TooLate, TooMuch
from covey.rewards.sandbox.grade import Verdict

START_SECONDS = 60.0


class CallFailed(Exception):
    """A call gave no value.

    `verdict.status` says how: `timeout`, `memory`, `crash` and `output` are what the call did; `infrastructure` means
    that it could not be made. `ended` says that the process ended under it, which need not be the call's doing.
    """

    def __init__(self, verdict: Verdict, ended: bool = False) -> None:
        super().__init__(f"{verdict.status}: {verdict.detail}")
        self.verdict = verdict
        self.ended = ended


class _UsedUp(Exception):
    """The child's processor time is up, but earlier calls had a part in that."""


class Session:
    """Functions of `code` in a child process that is killed when a call takes too long, and started again for the next.

    Args:
        child: starts a child.
        code: defines the functions; may import what its zygote has preloaded.
        trusted: values come back as they are. Those of hostile code come with sets and dictionaries unhashed.
        setup: a call that each fresh child gets first, (name, argument). It returns what went wrong, or an empty text.
    """

    def __init__(
        self,
        child: Callable[[], Child],
        code: str,
        trusted: bool = False,
        setup: tuple[str, object] | None = None,
    ) -> None:
        self._new_child = child
        self._code = code
        self._setup = setup
        self._trusted = trusted
        self._child: Child | None = None
        self._lock = threading.Lock()
        self._num_calls = 0

    def call(self, name: str, *args: object, seconds: float, **kwargs: object) -> Any:
        """Call a function of the code and return its value.

        Raises:
            CallFailed: it raised, took longer than `seconds`, or ended its process.
        """
        with self._lock:
            try:
                return self._call(name, args, kwargs, seconds)
            except _UsedUp:
                return self._call(name, args, kwargs, seconds)

    def close(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.close()
                self._child = None

    def _call(self, name: str, args: Sequence[object], kwargs: dict[str, object], seconds: float) -> object:
        if self._child is None:
            self._num_calls = 0
            self._child = self._started()
        child = self._child
        self._num_calls += 1
        try:
            child.within(seconds).send((name, list(args), kwargs))
            answer = child.receive(hashed=self._trusted)
        except (ChildEnded, TooLate, TooMuch) as error:
            raise CallFailed(self._why(error, child, seconds), isinstance(error, ChildEnded)) from None
        match answer:
            case ("value", value, _):
                return value
            case ("raised", kind, text):
                raise CallFailed(raised_verdict(kind, text))
            case ("missing", _):
                raise CallFailed(Verdict("crash", f"there is no {name!r}"))
            case ("opaque", kind):
                raise CallFailed(Verdict("crash", f"{name} returned {kind}"))
            case _:
                raise CallFailed(Verdict("crash", "an answer that is none"))

    def _started(self) -> Child:
        """Start a child, load the functions and make the first call.

        Raises:
            CallFailed: one of them failed.
        """
        child = self._new_child()
        try:
            child.within(START_SECONDS).send({"mode": "serve", "code": self._code, "filename": "<session>"})
            raised = start_fault(child.receive(hashed=self._trusted))
            fault = raised.detail if raised else ""
            if self._setup is not None and not fault:
                name, argument = self._setup
                child.send((name, [argument], {}))
                answer = child.receive(hashed=self._trusted)
                fault = str(answer[1] if is_message(answer, "value", 3) else answer)
        except (ChildEnded, TooLate, TooMuch) as error:
            fault = repr(error)
        if fault:
            child.close()
            raise CallFailed(Verdict("infrastructure", f"the functions could not be loaded: {fault}"))
        return child

    def _why(self, error: Exception, child: Child, seconds: float) -> Verdict:
        """Return the verdict on a call whose child is gone."""
        self._child = None
        end = child.close()
        if isinstance(error, TooLate):
            return Verdict("timeout", f"more than {seconds} s")
        used_up = end is not None and end.ran_out(child.limits) and end.code != signal.SIGPROF
        if used_up and self._num_calls > 1:
            raise _UsedUp
        return ended_verdict(error, end, child.limits)
