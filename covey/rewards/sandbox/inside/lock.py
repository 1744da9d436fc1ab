"""What a child does to itself before it reads its job. The order matters."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Collection, Mapping
from typing import Any

from . import landlock, seccomp
from .kernel import PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, drop_capabilities, prctl

NOBODY = 65534


def lock(limits: Mapping[str, Any], walls: Mapping[str, Any]) -> None:
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
    """When the machine runs out of memory, this process and those it forks go first."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def die_with_parent() -> None:
    """Be killed when the parent dies, also if it just did."""
    with contextlib.suppress(AttributeError):  # Linux only
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(limits: Mapping[str, Any], locked: bool) -> None:
    """Resource limits; those that only concern hostile code are left alone where the code is ours."""
    megabytes = 1 << 20
    wanted = {"RLIMIT_AS": limits["memory_mb"] * megabytes, "RLIMIT_CORE": 0}
    if locked:
        wanted |= {
            "RLIMIT_CPU": limits["cpu_seconds"],
            "RLIMIT_FSIZE": 0,
            "RLIMIT_NOFILE": 32,
            "RLIMIT_STACK": min(limits["stack_mb"] * megabytes, _hard("RLIMIT_STACK")),
            "RLIMIT_NPROC": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
        }
    for name, value in wanted.items():
        with contextlib.nullcontext() if locked else contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _hard(name: str) -> int:
    hard = resource.getrlimit(getattr(resource, name))[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _become_nobody() -> None:
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
