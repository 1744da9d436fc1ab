"""Jobs of the sandbox, and their grades."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RunStatus = Literal["ok", "wrong", "timeout", "memory", "output", "crash", "unsupported", "infrastructure"]
"""The end of a test, or of a program.

`ok`              passed
`wrong`           ran, and gave another value or output than expected
`timeout`         used up its processor time or its time on the clock
`memory`          ran out of memory
`output`          wrote or returned more than it may
`crash`           raised, or was ended by a signal
`unsupported`     cannot be judged: the test needs what cannot cross between processes. Not the code's fault
`infrastructure`  could not be run: our fault
"""

POLICY_FAULTS = frozenset({"wrong", "timeout", "memory", "output", "crash"})
OUR_FAULTS = frozenset({"unsupported", "infrastructure"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call with the value that it must return."""

    name: str
    args: tuple[object, ...]
    expected: object
    kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallsJob:
    """Functions of the code are called; the values are compared here."""

    code: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class StdioJob:
    """The code is a program; each test is (standard input, expected standard output)."""

    code: str
    tests: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AssertsJob:
    """Statements are executed in a process of their own, where the code's functions are proxies."""

    code: str
    tests: tuple[str, ...]
    setup: str = ""
    """Executed once, before the tests."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Name in the tests → function of the code, beyond the names that the tests use and do not define."""


Job = CallsJob | StdioJob | AssertsJob


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of one test."""

    status: RunStatus
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Grade:
    """Verdicts on the tests of one job, in order."""

    verdicts: tuple[Verdict, ...]
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0

    @property
    def status(self) -> RunStatus:
        """`ok` where all passed; what is our fault before what is the code's; else the first that did not pass."""
        statuses = [verdict.status for verdict in self.verdicts]
        for group in (OUR_FAULTS, POLICY_FAULTS):
            for status in statuses:
                if status in group:
                    return status
        return "ok" if statuses else "unsupported"

    @property
    def passed_share(self) -> float:
        """Share of tests passed, in [0, 1]."""
        return sum(v.status == "ok" for v in self.verdicts) / len(self.verdicts) if self.verdicts else 0.0

    @property
    def detail(self) -> str:
        """Status and detail of the first test that did not pass; empty where all passed."""
        return next((f"{v.status}: {v.detail}" for v in self.verdicts if v.status != "ok"), "")


@dataclass(frozen=True, slots=True)
class Program:
    """Output and end of a program."""

    status: RunStatus
    stdout: str
    stderr: str
    detail: str = ""
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
