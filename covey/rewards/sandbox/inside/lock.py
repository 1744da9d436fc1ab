"""Limits and locks that a child puts on itself before it reads its job. The order matters."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Collection, Mapping
from typing import TypedDict

from . import landlock, seccomp
from .kernel import PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, drop_capabilities, prctl

NOBODY = 65534


class FoundWalls(TypedDict):
    """Walls that the zygote found, and whether its children lock themselves at all."""

    locked: bool
    seccomp: bool
    landlock: int
    namespaces: list[str]


def lock(limits: Mapping[str, int], walls: FoundWalls) -> None:
    """Limit and lock this process, as the zygote was told to.

    `PR_SET_PDEATHSIG` comes after the change of user, which clears it. Seccomp comes last: it forbids what the others
    need.
    """
    _limit(limits, walls["locked"])
    if walls["locked"] and os.getuid() == 0:
        _become_nobody()
    die_with_parent()
    if not walls["locked"]:
        return
    prctl(PR_SET_DUMPABLE, 0)
    with contextlib.suppress(OSError):
        drop_capabilities()
    if walls["seccomp"]:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        if walls["landlock"]:
            landlock.install(walls["landlock"])
        seccomp.install()


def die_first() -> None:
    """Let the kernel kill this process and those it forks first when the machine runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, also if it just did."""
    with contextlib.suppress(AttributeError):  # Linux only
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(limits: Mapping[str, int], locked: bool) -> None:
    """Set resource limits; those that only concern hostile code are left alone where the code is ours."""
    megabytes = 1 << 20
    wanted = {"RLIMIT_AS": limits["memory_mb"] * megabytes, "RLIMIT_CORE": 0}
    if locked:
        wanted |= {
            "RLIMIT_CPU": limits["cpu_seconds"],
            "RLIMIT_FSIZE": 0,
            "RLIMIT_NOFILE": 32,
            "RLIMIT_STACK": limits["stack_mb"] * megabytes,
            "RLIMIT_NPROC": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
        }
    for name, value in wanted.items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # the host may have less itself
        with contextlib.nullcontext() if locked else contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _become_nobody() -> None:
    """Give up the rights of root."""
    with contextlib.suppress(OSError):
        os.setgroups([])
    for change in (os.setresgid, os.setresuid):
        try:
            change(NOBODY, NOBODY, NOBODY)
        except OSError:  # a user namespace that knows one user only; its root has no power outside
            return


def forget_tools(kept: Collection[str]) -> None:
    """Take the zygote's own tools out of reach of an import, except what users asked for.

    It is no wall, but it is no invitation either.
    """
    for name in list(sys.modules):
        if name.partition(".")[0] in ("inside", "ctypes", "_ctypes") and name not in kept:
            del sys.modules[name]
