"""Session: functions that stay loaded in a child, called one at a time, each call with a deadline of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from covey.rewards.sandbox.calls import ended_verdict, raised_verdict, shortened, start_fault
from covey.rewards.sandbox.child import Child, ChildEnded, TooLate, TooMuch
from covey.rewards.sandbox.grade import Verdict
from covey.rewards.sandbox.inside.answers import NO_ANSWER, checked
from covey.rewards.sandbox.zygote import START_SECONDS, ZygoteGone


class CallFailed(Exception):
    """A call gave no value.

    `verdict.status` says how: `timeout`, `memory`, `crash` and `output` are what the call did; `infrastructure` means
    that it could not be made. `ended` says that the process ended under it, which need not be the call's doing.
    """

    def __init__(self, verdict: Verdict, ended: bool = False) -> None:
        super().__init__(f"{verdict.status}: {verdict.detail}")
        self.verdict = verdict
        self.ended = ended


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
        self._code, self._setup = code, setup
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
            answer = self._answer((name, list(args), kwargs), seconds)
        match checked(answer):
            case ("value", value, _):
                return value
            case ("raised", str(kind), str(text)):
                raise CallFailed(raised_verdict(kind, text))
            case ("missing", _):
                raise CallFailed(Verdict("crash", f"there is no {name!r}"))
            case ("opaque", str(kind)):
                raise CallFailed(Verdict("crash", f"{name} returned {kind}"))
            case _:
                raise CallFailed(Verdict("crash", NO_ANSWER))

    def close(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.close()
                self._child = None

    def _answer(
        self, request: tuple[str, list[object], dict[str, object]], seconds: float, tries: int = 3
    ) -> object:
        """Return the child's answer to a request; raise CallFailed where it gives none."""
        if self._child is None:
            self._num_calls = 0
            self._child = self._started(tries)
        child = self._child
        self._num_calls += 1
        try:
            child.within(seconds).send(request)
            return child.receive(hashed=self._trusted)
        except (ChildEnded, TooLate, TooMuch) as error:
            self._child, end = None, child.close()
            if isinstance(error, TooLate):
                raise CallFailed(Verdict("timeout", f"more than {seconds} s")) from None
            used_up = end is not None and end.ran_out(child.limits) and end.code != signal.SIGPROF
            if (used_up and self._num_calls > 1) or (end is None and tries > 1):  # not its doing
                return self._answer(request, seconds, tries - 1)
            raise CallFailed(ended_verdict(error, end, child.limits), isinstance(error, ChildEnded)) from None

    def _started(self, tries: int) -> Child:
        """Return a child with the functions loaded and set up; raise CallFailed where that fails."""
        try:
            child = self._new_child()
        except ZygoteGone as error:
            if tries > 1:
                return self._started(tries - 1)
            raise CallFailed(Verdict("infrastructure", str(error)), ended=True) from None
        try:
            child.within(START_SECONDS).send({"mode": "serve", "code": self._code, "filename": "<session>"})
            raised = start_fault(child.receive(hashed=self._trusted))
            fault = raised.detail if raised else ""
            if self._setup is not None and not fault:
                name, argument = self._setup
                child.send((name, [argument], {}))
                answer = checked(child.receive(hashed=self._trusted))
                match answer:
                    case ("value", value, _):
                        fault = value if isinstance(value, str) else shortened(value)
                    case _:
                        fault = shortened(answer)
        except (ChildEnded, TooLate, TooMuch) as error:
            fault = repr(error)
        if fault:
            if child.close() is None and tries > 1:
                return self._started(tries - 1)
            raise CallFailed(Verdict("infrastructure", f"the functions could not be loaded: {fault}"))
        return child
