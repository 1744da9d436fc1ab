"""Many sockets in one process: with some servers, or some trainers, there are more than 1,024."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress

ENOUGH = 1 << 16
"""Open files that a process is allowed at least, where the system lets it."""

Poll: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Takes sockets of any number, which `select` does not, and no file of its own, as `epoll` does."""


def readable(sockets: Sequence[socket.socket], seconds: float) -> list[socket.socket]:
    """Return those of the sockets that something can be read from, or that were closed at the other end, within the time."""
    with Poll() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        found = {key.fileobj for key, _ in selector.select(seconds)}
    return [one for one in sockets if one in found]


def allow_many() -> None:
    """Raise the number of open files that this process may have, up to what the system allows it: 1,024 is a usual default."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = ENOUGH if most == resource.RLIM_INFINITY else min(ENOUGH, most)
        if now != resource.RLIM_INFINITY and now < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
