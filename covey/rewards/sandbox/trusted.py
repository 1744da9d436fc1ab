"""Processes that can be killed, for our own and the user's functions.

No walls: the functions are trusted, the time they take is not.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from covey.rewards.sandbox.child import Child
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.zygote import Zygote

LIMITS = Limits(cpu_seconds=1_000_000, wall_seconds=3_600.0, memory_mb=16_384, result_bytes=64 << 20)

_PACKAGE_FOLDER = Path(__file__).parents[3]
"""Folder of this package, also when an installer's hook finds it rather than the search path."""

_zygotes: dict[tuple[int, tuple[str, ...], tuple[str, ...], int], Zygote] = {}
_lock = threading.Lock()


def trusted_child(preload: tuple[str, ...] = (), memory_mb: int = LIMITS.memory_mb) -> Child:
    """Return a child that can import what this process can, forked from a zygote that has `preload` imported already."""
    limits = Limits(LIMITS.cpu_seconds, LIMITS.wall_seconds, memory_mb, result_bytes=LIMITS.result_bytes)
    paths = tuple(dict.fromkeys(os.path.abspath(path) for path in (str(_PACKAGE_FOLDER), *sys.path)))
    key = (os.getpid(), preload, paths, memory_mb)
    with _lock:
        if key not in _zygotes or not _zygotes[key].is_alive:
            for other in [other for other in _zygotes if other[0] != os.getpid()]:
                del _zygotes[other]  # those of the process that this one was forked from
            _zygotes[key] = Zygote(limits, locked=False, preload=preload, paths=paths)
        return Child(_zygotes[key], limits)
