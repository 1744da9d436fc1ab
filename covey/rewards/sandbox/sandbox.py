"""Sandbox: zygotes that start when they are needed, and the jobs that are run in them."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from covey.errors import SandboxError
from covey.rewards.sandbox.asserts import grade_asserts
from covey.rewards.sandbox.calls import grade_calls, shortened
from covey.rewards.sandbox.child import Child, ChildEnded, TooLate, TooMuch
from covey.rewards.sandbox.grade import AssertsJob, CallsJob, Grade, Job, Program, StdioJob, Verdict
from covey.rewards.sandbox.inside.answers import checked
from covey.rewards.sandbox.inside.codec import Opaque, encode
from covey.rewards.sandbox.limits import ALL_WALLS, LEVELS, IsolationLevel, Limits, Walls, check_can_fork
from covey.rewards.sandbox.monty import MontyPool
from covey.rewards.sandbox.stdio import grade_stdio, run_program
from covey.rewards.sandbox.zygote import START_SECONDS, Zygote, ZygoteGone

TRIES = 3
"""Of a job whose zygote died under it; the zygotes of other jobs say nothing about that."""

_OF_THIS_PROCESS = ("_lock", "_zygotes", "_owner", "_too_weak", "_monty")


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    """Runs model-written Python where it can read no file, open no socket, start no process and see no expected value.

    Args:
        level: what must stand between the code and this machine, see `covey.rewards.sandbox.limits.IsolationLevel`. Every wall
            that the machine offers is used at any level; below the level asked for, nothing is run.
        limits: what one child may use.
        preload: modules that code may import, beyond those of the standard library that are there anyway.
        paths: where `preload` is found, for modules that are installed (`sys.path`).
        workers: jobs at a time; by default as many as there are processors.
        walls: which walls to use; fewer than all is for tests.
        otherwise: where this machine offers less than `level`: `refuse`, or run function calls in pydantic-monty, which
            knows a part of Python (see `covey.rewards.sandbox.monty`). Programs and assertions are refused there.

    Nothing is started before the first job. It can be pickled, and used after a fork: each process has its own zygotes.

    Raises:
        SandboxError: at the first job, if this machine offers less than `level`.
    """

    _lock: threading.Lock
    _too_weak: bool | None
    _monty: MontyPool | None
    _zygotes: dict[str, Zygote]
    _owner: int

    def __init__(
        self,
        level: IsolationLevel = "seccomp",
        limits: Limits | None = None,
        preload: Sequence[str] = (),
        paths: Sequence[str] = (),
        workers: int | None = None,
        walls: Sequence[str] = ALL_WALLS,
        otherwise: Literal["refuse", "monty"] = "refuse",
    ) -> None:
        if level not in LEVELS:
            raise ValueError(f"Sandbox(level={level!r}): level is one of {', '.join(LEVELS)}.")
        if otherwise not in ("refuse", "monty"):
            raise ValueError(f"Sandbox(otherwise={otherwise!r}): it is 'refuse' or 'monty'.")
        if otherwise == "refuse":  # monty brings its own processes
            check_can_fork("A sandbox runs code")
        self.level, self.limits, self.otherwise = level, limits or Limits(), otherwise
        self.preload, self.paths, self._wall_names = tuple(preload), tuple(paths), tuple(walls)
        self.workers = workers or os.cpu_count() or 1
        self._forget()

    def grade(self, job: Job, stop_early: bool = False) -> Grade:
        """Run one job; `stop_early` leaves out the tests after the first that does not pass."""
        for _ in range(TRIES - 1):
            grade, used = self._grade(job, stop_early)
            if grade.status != "infrastructure" or all(zygote.is_alive for zygote in used):
                return grade
        return self._grade(job, stop_early)[0]

    def grade_all(self, jobs: Sequence[Job], stop_early: bool = False) -> list[Grade]:
        """Run jobs side by side; equal ones once."""
        keys = [_key(job) for job in jobs]
        different = dict(zip(keys, jobs, strict=True))
        self.start()
        if len(different) > 1 and self.workers > 1:
            with ThreadPoolExecutor(min(self.workers, len(different))) as pool:
                done = list(pool.map(lambda job: self.grade(job, stop_early), different.values()))
        else:
            done = [self.grade(job, stop_early) for job in different.values()]
        grades = dict(zip(different, done, strict=True))
        return [grades[key] for key in keys]

    def run(self, code: str, stdin: str = "") -> Program:
        """Run a program; return what it wrote, and how it ended."""
        return run_program(self._zygote("code"), code, stdin, self.limits)

    def child(self) -> Child:
        """Return a fresh child, for callers that send and receive messages themselves."""
        return Child(self._zygote("code"), self.limits)

    @property
    def walls(self) -> Walls:
        """Walls between the code and this machine; starts the sandbox."""
        return self._zygote("code").walls

    def start(self) -> None:
        """Start now rather than at the first job, so that a machine that cannot is seen early."""
        if not self._uses_monty():
            self._zygote("code")

    def close(self) -> None:
        """End all processes of the sandbox; the next job starts new ones."""
        with self._lock:
            zygotes = self._zygotes if self._owner == os.getpid() else {}
            self._zygotes = {}
        for zygote in zygotes.values():
            zygote.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        """Start without zygotes: in a new process, those of another one are not ours."""
        self._lock = threading.Lock()
        self._too_weak = None
        self._monty = None
        self._zygotes = {}
        self._owner = os.getpid()

    def _grade(self, job: Job, stop_early: bool) -> tuple[Grade, list[Zygote]]:
        """Run one job once; return its grade and the zygotes that it ran in."""
        if isinstance(job, CallsJob) and self._uses_monty():
            with self._lock:
                monty = self._monty = self._monty or MontyPool()
            return monty.grade(job, self.limits, stop_early), []
        used = [
            self._zygote(role) for role in (("code", "tests") if isinstance(job, AssertsJob) else ("code",))
        ]
        try:
            if isinstance(job, CallsJob):
                return grade_calls(used[0], job, self.limits, stop_early), used
            if isinstance(job, StdioJob):
                return grade_stdio(used[0], job, self.limits, stop_early), used
            return grade_asserts(used[0], used[1], job, self.limits, stop_early), used
        except ZygoteGone as error:
            return Grade((Verdict("infrastructure", str(error)),)), used
        except OSError as error:
            raise _of_descriptors(error, self.workers) from None

    def _uses_monty(self) -> bool:
        """Return whether this machine offers too little, and something else may be used instead; found out once."""
        if self.otherwise != "monty":
            return False
        if self._too_weak is None:
            try:
                self._zygote("code")
                self._too_weak = False
            except SandboxError:
                self._too_weak = True
        return self._too_weak

    def _zygote(self, role: str) -> Zygote:
        """Return the zygote for code, or the one for tests: a test in the memory of a process that runs code can be read."""
        if self._owner != os.getpid():
            self._forget()
        with self._lock:
            if role not in self._zygotes or not self._zygotes[role].is_alive:
                self._zygotes[role] = start_zygote(
                    self.level, self.limits, self.preload, self.paths, self._wall_names
                )
            return self._zygotes[role]


@functools.cache
def shared_sandbox() -> Sandbox:
    """Return the sandbox of all rewards that were not given one of their own."""
    return Sandbox()


def start_zygote(
    level: IsolationLevel, limits: Limits, preload: Sequence[str], paths: Sequence[str], walls: Sequence[str]
) -> Zygote:
    """Start a zygote whose walls were tried out.

    Raises:
        SandboxError: they do not reach the level.
    """
    zygote = Zygote(limits, True, walls, preload, paths)
    fault = _try_walls(zygote, limits)
    if fault is None and zygote.walls.reaches(level):
        return zygote
    found = f"{zygote.walls}" + (f"; {fault}" if fault else "")
    zygote.close()
    if level == "limits":
        return Zygote(limits, True, [name for name in walls if name == "namespaces"], preload, paths)
    raise SandboxError(
        f"Code was to be run at isolation level {level!r}, and this machine offers less: {found}. Nothing was run. Use a "
        "Linux kernel and a container that allow it, ask for a lower level, or drop the reward that runs code."
    )


def _of_descriptors(error: OSError, workers: int) -> Exception:
    """Return what to raise for an error of the system while a job ran: usually this process may open no more descriptors."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return error
    return SandboxError(
        f"The sandbox runs {workers} jobs at a time, and this process may open no more files ({error}). Raise the limit "
        "(ulimit -n), or give the reward Sandbox(workers=...) with fewer."
    )


_TRIAL = """
import os, socket

def trial():
    stood = []
    for name, attempt in (("files", lambda: os.open("/", os.O_RDONLY)), ("processes", fork), ("sockets", socket.socket)):
        try:
            attempt()
        except OSError:
            stood.append(name)
    return stood

def fork():
    if os.fork() == 0:
        os._exit(0)
"""


def _try_walls(zygote: Zygote, limits: Limits) -> str | None:
    """Let a child try what it must not be able to do; return what is wrong, None where nothing is or no wall was promised."""
    if not zygote.walls.seccomp:
        return None
    with Child(zygote, limits) as child:
        try:
            child.within(START_SECONDS).send({"mode": "serve", "code": _TRIAL, "filename": "<trial>"})
            if checked(child.receive())[0] != "ready":
                return "a child could not run the trial"
            child.send(("trial", [], {}))
            answer = checked(child.receive())
        except (ChildEnded, TooLate, TooMuch) as error:
            return f"a locked child did not answer ({type(error).__name__}: {error})"
    stood = answer[1] if answer[0] == "value" else answer
    if stood == ["files", "processes", "sockets"]:
        return None
    is_text = isinstance(stood, list | tuple) and all(isinstance(wall, str) for wall in stood)
    return f"only these walls stood: {stood if is_text else shortened(stood)}"


def probe() -> Walls:
    """Return the walls that this machine offers; starts a sandbox for it.

    Raises:
        SandboxError: not even a child process can be started.
    """
    with Sandbox(level="limits") as sandbox:
        return sandbox.walls


def _key(job: Job) -> bytes | int:
    """Return what is equal for equal jobs; the identity of a job that cannot be encoded."""
    parts: tuple[object, ...] = (type(job).__name__, job.code)
    if isinstance(job, CallsJob):
        parts += tuple((c.name, tuple(c.args), dict(c.kwargs), c.expected) for c in job.calls)
    elif isinstance(job, StdioJob):
        parts += job.tests
    else:
        parts += (job.tests, job.setup, dict(job.names))
    try:
        return encode(parts)
    except Opaque:
        return id(job)
