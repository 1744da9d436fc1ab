"""Labels: what a server says whose weights it serves.

    run:version:owner.mark          as they were pushed
    run:version:owner.mark+again    the same weights, given once more to a server that had been restarted

The owner is the process that pushed: host, process id and when it was started. So another process can tell whether the run that
a server works for is over. The mark is another one at every push: two pushes are never taken for one, also of one run that was
started twice.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from covey.sample.remote.server import UNLABELLED


@dataclass(frozen=True, slots=True)
class Label:
    """The label of a push."""

    run: str
    version: int | None
    """Number of updates that the weights have seen; None: not known."""
    host: str
    process: int
    started: str
    """When the process was started, as its system counts; empty: not known."""
    mark: str
    """What tells this push from every other one."""

    def __str__(self) -> str:
        owner = f"{quote(self.host, safe='')}/{self.process}/{self.started}"
        version = "" if self.version is None else self.version
        return f"{quote(self.run, safe='')}:{version}:{owner}.{self.mark}"

    @property
    def is_of_dead(self) -> bool | None:
        """Whether the process that pushed is over; None: it cannot be asked, as it is on another host or on Windows."""
        if self.host != socket.gethostname() or os.name != "posix":
            return None
        return not _is_alive(self.process, self.started)

    @property
    def is_own(self) -> bool:
        """Whether this process pushed."""
        ours = socket.gethostname(), os.getpid(), _started(os.getpid())
        return (self.host, self.process, self.started) == ours


def new_label(run: str, version: int | None) -> Label:
    """Return a label for a push by this process, unlike every other one."""
    process = os.getpid()
    return Label(run, version, socket.gethostname(), process, _started(process), secrets.token_hex(4))


def read_label(text: str) -> Label | None:
    """Return the label that a server tells; None where no run of Covey made it."""
    try:
        run, version, rest = text.partition("+")[0].split(":")
        owner, mark = rest.rsplit(".", 1)
        host, number, started = owner.split("/")
        process, update = int(number), int(version) if version else None
    except ValueError:
        return None
    is_process = 0 < process < 1 << 31  # the system takes others for groups, or not at all
    return Label(unquote(run), update, unquote(host), process, started, mark) if is_process else None


def pushed_again(label: str) -> str:
    """Return the label for the same weights on a server that had been restarted: what it drew in between can be told by it."""
    return f"{label.partition('+')[0]}+{secrets.token_hex(4)}"


def are_same_weights(one: str, other: str) -> bool:
    """Return whether two labels are of one push, given again or not."""
    return one.partition("+")[0] == other.partition("+")[0]


def oldest_version(labels: Iterable[str]) -> int | None:
    """Return the fewest updates that the weights of some labels have seen; None: one label does not say."""
    versions = [None if (label := read_label(text)) is None else label.version for text in labels]
    return None if None in versions else min(v for v in versions if v is not None)


def described(text: str) -> str:
    """Return what a label says, for people."""
    if text == UNLABELLED:
        return "no label: it was started again and serves the weights that it was started with"
    label = read_label(text)
    if label is None:
        return f"the label {text!r}, which no run of Covey has given"
    weights = "weights" if label.version is None else f"weights of update {label.version}"
    return f"{weights} of the run {label.run!r} (process {label.process} on {label.host})"


def _is_alive(process: int, started: str) -> bool:
    """Return whether a process of this host is the one that was started then, and still runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, and is somebody else's
        pass
    return _started(process) == started


def _started(process: int) -> str:
    """Return when a process was started, in ticks since the host was; empty where the system does not say."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
