"""Python for a policy: a stateful interpreter per episode, in a sandbox.

trainer = GRPOTrainer(MODEL, [correct], args, dataset, environment_factory=Python(seconds=5))
"""

from __future__ import annotations

import errno
import math
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from covey.errors import SandboxError, ToolError
from covey.rewards.sandbox.calls import ended_verdict, shortened, start_fault
from covey.rewards.sandbox.child import Child, ChildEnded, Exit, TooLate, TooMuch
from covey.rewards.sandbox.inside.answers import checked
from covey.rewards.sandbox.limits import IsolationLevel, Limits
from covey.rewards.sandbox.sandbox import TRIES, Sandbox
from covey.rewards.sandbox.zygote import START_SECONDS, ZygoteGone
from covey.tools.decorator import is_positive, tool

INSIDE = Path(__file__).with_name("python_inside.py")
PACKAGE_FOLDER = Path(__file__).parents[2]
WITH_IT = {"sympy": "covey.tools.sympy_inside"}
"""Modules that make a preloaded one whole: some import parts of themselves only when they are needed."""
CALLS_PER_LIFE = 20
"""Processor time of an interpreter's whole life, in calls that use up their deadline."""
GONE = "The interpreter was stopped: {why}. All names are gone; the next call begins anew."


class Python:
    """Makes interpreters: the environment factory of a policy that may run Python.

    Args:
        level: what must stand between the code and this machine; below it, nothing is run.
        seconds: on the clock, for one call. All calls of an episode get 20 times as much processor time together.
        memory_mb: address space of one interpreter, in MiB, its modules included.
        preload: installed modules that code may import, beyond those of the standard library that are there anyway.
        max_characters: of what comes back from a call; of more, the middle is left out.

    Each call of the factory gives a `PythonInterpreter`. A subclass of that with `get_reward` is an environment of your own:
    `environment_factory=lambda: Solver(python)`.

    Raises:
        ToolError: a limit that is no number above 0.
        SandboxError: at the first call, if this machine offers less than `level`.
    """

    def __init__(
        self,
        level: IsolationLevel = "seccomp",
        seconds: float = 5.0,
        memory_mb: int = 256,
        preload: Sequence[str] = ("sympy",),
        max_characters: int = 4_000,
    ) -> None:
        given = {"seconds": seconds, "memory_mb": memory_mb, "max_characters": max_characters}
        for name, value in given.items():
            if not is_positive(value):
                raise ToolError(f"Python({name}={value!r}): it is a number above 0.")
        self.seconds, self.max_characters = float(seconds), int(max_characters)
        of_a_life = math.ceil(seconds * CALLS_PER_LIFE)
        limits = Limits(cpu_seconds=of_a_life, wall_seconds=self.seconds, memory_mb=int(memory_mb))
        late = [WITH_IT[name] for name in preload if name in WITH_IT]
        paths = (str(PACKAGE_FOLDER), *sys.path) if preload else ()
        self.sandbox = Sandbox(level, limits, (*preload, *late), paths)

    def __call__(self) -> PythonInterpreter:
        return PythonInterpreter(self)

    def close(self) -> None:
        """End all interpreters and the process that starts them; a later call starts it again."""
        self.sandbox.close()

    def child(self) -> Child:
        """Start the process of an interpreter, ready for its first call.

        Raises:
            SandboxError: it cannot be started, or the machine offers less than the level.
        """
        for _ in range(TRIES - 1):
            try:
                return self._child()
            except ZygoteGone:
                continue
        return self._child()

    def _child(self) -> Child:
        try:
            child = self.sandbox.child()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise SandboxError(
                f"No further interpreter can be started: this process may open no more files ({error}). Raise the limit "
                "(ulimit -n), or take fewer completions at a time."
            ) from None
        job = {"mode": "serve", "code": INSIDE.read_text(encoding="utf-8"), "filename": INSIDE.name}
        try:
            child.within(START_SECONDS).send(job)
            fault = start_fault(child.receive())
        except (ChildEnded, TooLate, TooMuch) as error:
            fault = ended_verdict(error, child.close(), child.limits)
        if fault is None:
            return child
        if child.close() is None:
            raise ZygoteGone("The sandbox's fork server is gone.")
        raise SandboxError(
            f"An interpreter could not be started within {child.limits.memory_mb} MiB: {fault.detail}. Give Python(memory_mb=...) "
            "more, or preload fewer modules."
        )


class PythonInterpreter:
    """Environment of one episode: Python whose names stay between calls.

    Its process starts at the first call, and ends with the episode's environment, by `close` or with the next `reset`.
    """

    def __init__(self, python: Python) -> None:
        self._python = python
        self._child: Child | None = None
        self._lock = threading.Lock()  # a call that was given up may still run when the next episode begins

    def reset(self, **row: object) -> None:
        """Forget all names."""
        self.close()

    @tool(where="thread")
    def python(self, code: str) -> str:
        """Run Python code and return what it prints and the value of its last line. Names stay for later calls.

        Args:
            code: lines of Python
        """
        with self._lock:
            text = self._answer(str(code))
        limit, half = self._python.max_characters, self._python.max_characters // 2
        if (
            len(text) <= limit + 100
        ):  # the child has cut it, unless hostile code kept it from that; 100 for its note
            return text
        note = f"\n[... {len(text) - 2 * half} characters left out ...]\n"
        return text[:half] + note + text[len(text) - half :]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _answer(self, code: str) -> str:
        """Return what the child says, or how it ended."""
        if self._child is None:
            self._child = self._python.child()
        child = self._child
        try:
            child.within(self._python.seconds).send(("run", [code, self._python.max_characters], {}))
            answer = checked(child.receive())
        except (ChildEnded, TooLate, TooMuch) as error:
            return GONE.format(why=ended_verdict(error, self._end(), child.limits).detail)
        match answer:
            case ("value", str(text), _):
                return text.encode("utf-8", "backslashreplace").decode()
            case ("raised", str(kind), str(text)):
                return f"{kind}: {text}"
        self._end()  # hostile code has replaced the interpreter
        return GONE.format(why=f"its answer is none: {shortened(answer)}")

    def _end(self) -> Exit | None:
        """End the process where there is one; return how it ended."""
        child, self._child = self._child, None
        return None if child is None else child.close()
