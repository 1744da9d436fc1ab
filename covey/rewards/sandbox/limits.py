"""Resources that a child may use, and the walls around it."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal, get_args

from covey.errors import SandboxError

IsolationLevel = Literal["limits", "seccomp", "full"]
LEVELS: tuple[IsolationLevel, ...] = get_args(IsolationLevel)
"""From weak to strong.

`limits`   resource limits only: code can read files, talk to the network and start processes
`seccomp`  an allow list of system calls: none of that, without any privilege
`full`     seccomp, Landlock, and own PID and network namespaces
"""

NEEDED = ("fcntl", "resource")
"""Modules of Unix without which no child is forked and locked."""

ALL_WALLS = ("seccomp", "landlock", "namespaces")


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources that one child may use.

    Busy code ends by `cpu_seconds`, which does not depend on what else the machine does; sleeping or stopped code ends
    by `wall_seconds`.
    """

    cpu_seconds: int = 1
    """Seconds of processor time; whole seconds."""
    wall_seconds: float = 4.0
    """Seconds on the clock, for one program, or for all calls of one job."""
    memory_mb: int = 256
    """Address space, in MiB."""
    stack_mb: int = 64
    """Stack, in MiB."""
    output_bytes: int = 65_536
    """Standard output and standard error, each."""
    result_bytes: int = 1_048_576
    """All values that come back, together."""


@dataclass(frozen=True, slots=True)
class Walls:
    """Walls that this machine offers, as a zygote found them."""

    seccomp: bool = False
    landlock: int = 0
    """The kernel's Landlock version; 0: none."""
    namespaces: tuple[str, ...] = ()

    @property
    def level(self) -> IsolationLevel:
        if not self.seccomp:
            return "limits"
        return "full" if self.landlock and {"pid", "net"} <= set(self.namespaces) else "seccomp"

    def reaches(self, level: IsolationLevel) -> bool:
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def __str__(self) -> str:
        landlock = f"Landlock version {self.landlock}" if self.landlock else "no Landlock"
        namespaces = f"namespaces {', '.join(self.namespaces)}" if self.namespaces else "no namespaces"
        return f"{'seccomp' if self.seccomp else 'no seccomp'}, {landlock}, {namespaces}"


def check_can_fork(what: str) -> None:
    """Check that this system forks processes with limits, at the time when something that needs them is made.

    Raises:
        SandboxError: it does not, as on Windows.
    """
    missing = [f"the module {name}" for name in NEEDED if importlib.util.find_spec(name) is None]
    missing += [] if hasattr(os, "fork") else ["os.fork"]
    if missing:
        raise SandboxError(
            f"{what} in a process of its own, with limits that the kernel keeps. That needs Linux (Windows has it as WSL); here "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Use rewards that run no code on this machine."
        )
