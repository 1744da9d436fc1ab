"""Function calls in pydantic-monty, an interpreter of a part of Python, for machines without seccomp.

It has no files, sockets or processes at all, and it lacks generators, inheritance and much of the standard library. So
a value that it returns is a verdict, and so is the end of its time or memory; an exception is none, since code that is
right may need what is not there: such a test is `unsupported`. Its worker processes end by their limits.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from covey.errors import SandboxError
from covey.rewards.sandbox.calls import shortened, with_rest
from covey.rewards.sandbox.compare import same_value
from covey.rewards.sandbox.grade import Call, CallsJob, Grade, Verdict
from covey.rewards.sandbox.inside.codec import Opaque, decode, encode
from covey.rewards.sandbox.limits import Limits


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
        with self._opened().checkout(limits=caps) as session:
            fault = self._run(session, job.code, {})[1]
            for call in job.calls if fault is None else ():
                verdicts.append(self._verdict(session, call))
                if verdicts[-1].status != "ok" and (stop_early or verdicts[-1].status == "timeout"):
                    break
        return with_rest(verdicts, fault or Verdict("wrong", "not run"), len(job.calls), None)

    def _verdict(self, session: Any, call: Call) -> Verdict:
        inputs = {"covey_args": list(call.args), "covey_kwargs": dict(call.kwargs)}
        value, fault = self._run(session, f"{call.name}(*covey_args, **covey_kwargs)", inputs)
        if fault is not None:
            return fault
        try:
            plain = decode(encode(value), hashed=False)  # exact builtin types, bounded in depth
        except (Opaque, RecursionError) as error:
            return Verdict("wrong", f"{call.name} returned {error}")
        if same_value(call.expected, plain):
            return Verdict("ok")
        return Verdict(
            "wrong", f"{call.name} returned {shortened(plain)}, expected {shortened(call.expected)}"
        )

    def _run(self, session: Any, code: str, inputs: dict[str, Any]) -> tuple[Any, Verdict | None]:
        try:
            return session.feed_run(code, inputs=inputs), None
        except self._monty.MontyCrashedError as error:
            return None, Verdict("timeout" if error.timed_out else "crash", str(error))
        except Exception as error:  # whatever it raises, it is an answer to hostile code
            text = str(error)[:300]
            status = (
                "timeout"
                if text.startswith("TimeoutError")
                else "memory"
                if text.startswith("MemoryError")
                else None
            )
            return None, Verdict(status or "unsupported", text)  # type: ignore[arg-type]

    def _opened(self) -> Any:
        with self._lock:
            if self._owner != os.getpid():
                self._pool = self._monty.Monty(max_checkouts_per_worker=1, request_timeout=60.0).__enter__()
                self._owner = os.getpid()
            return self._pool
