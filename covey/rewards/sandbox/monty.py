"""Function calls in pydantic-monty, an interpreter of a part of Python, for machines without seccomp.

It has no files, sockets or processes at all, and it lacks generators, inheritance and much of the standard library. So
a value that it returns is a verdict, and so is the end of its time or memory; an exception is none, since code that is
right may need what is not there: such a test is `unsupported`. Its worker processes end by their limits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from covey.errors import SandboxError
from covey.rewards.sandbox.calls import answer_verdict, with_rest
from covey.rewards.sandbox.grade import Call, CallsJob, Grade, Verdict
from covey.rewards.sandbox.inside.answers import safe_text
from covey.rewards.sandbox.inside.codec import Opaque, decode, encode
from covey.rewards.sandbox.limits import Limits


class Interpreter(Protocol):
    """Session of pydantic-monty: an interpreter that keeps the names of earlier code."""

    def feed_run(self, code: str, inputs: Mapping[str, object]) -> object: ...


class MontyPool:
    """Worker processes of pydantic-monty, a fresh one for each job. Made anew after a fork.

    Raises:
        SandboxError: the package is not installed.
    """

    def __init__(self) -> None:
        try:
            import pydantic_monty
        except ImportError as error:
            raise SandboxError(
                "otherwise='monty' needs the package pydantic-monty: pip install 'covey[monty]'."
            ) from error
        self._monty: Any = pydantic_monty
        self._lock = threading.Lock()
        self._owner = 0
        self._pool: Any = None

    def grade(self, job: CallsJob, limits: Limits, stop_early: bool = False) -> Grade:
        """Run the code once and call its functions one after the other."""
        verdicts: list[Verdict] = []
        caps = {"max_feed_duration_secs": float(limits.cpu_seconds), "max_memory": limits.memory_mb << 20}
        with self._lock:
            if self._owner != os.getpid():
                self._pool = self._monty.Monty(max_checkouts_per_worker=1, request_timeout=60.0).__enter__()
                self._owner = os.getpid()
            pool = self._pool
        with pool.checkout(limits=caps) as session:
            fault = self._run(session, job.code, {})[1]
            for call in job.calls if fault is None else ():
                verdicts.append(self._verdict(session, call))
                if verdicts[-1].status != "ok" and (stop_early or verdicts[-1].status == "timeout"):
                    break
        return with_rest(verdicts, fault or Verdict("wrong", "not run"), len(job.calls), None)

    def _verdict(self, session: Interpreter, call: Call) -> Verdict:
        """Return the verdict on one call in a session."""
        inputs = {"covey_args": list(call.args), "covey_kwargs": dict(call.kwargs)}
        value, fault = self._run(session, f"{call.name}(*covey_args, **covey_kwargs)", inputs)
        if fault is not None:
            return fault
        try:
            plain = decode(encode(value), hashed=False)  # exact builtin types, bounded in depth
        except (Opaque, RecursionError) as error:
            return Verdict("wrong", f"{call.name} returned {safe_text(error)}")
        return answer_verdict(call, ("value", plain, None))

    def _run(
        self, session: Interpreter, code: str, inputs: Mapping[str, object]
    ) -> tuple[object, Verdict | None]:
        """Return the value of some code, or the verdict on code that has none."""
        try:
            return session.feed_run(code, inputs=inputs), None
        except self._monty.MontyCrashedError as error:
            return None, Verdict("timeout" if error.timed_out else "crash", safe_text(error))
        except Exception as error:  # whatever it raises, it is an answer to hostile code
            text = safe_text(error)[:300]
            if text.startswith("TimeoutError"):
                return None, Verdict("timeout", text)
            return None, Verdict("memory" if text.startswith("MemoryError") else "unsupported", text)
