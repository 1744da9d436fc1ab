"""Runs a command in a process group of its own, and ends the group with whoever started it.

A script of the standard library: `python watcher.py SECONDS LOG COMMAND...`. A server has processes of its own, which live on
when the server or the trainer is killed, and keep their memory. So this small process stands between the two: its standard input
is a pipe of the trainer, which closes with the trainer, however that ends. It writes the number of the group to its standard
output, and returns the command's exit code.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

SHARED = Path("/dev/shm")
OF_PROCESSES = ("psm_", "sem.", "torch_", "nccl-")
"""How names of memory begin that processes make for one another. Files of people are never touched."""
POLL_SECONDS = 0.5


def main(seconds: float, log: str, command: list[str]) -> int:
    """Run the command until it ends, the pipe closes or the parent is gone; leave nothing of its group behind.

    Args:
        seconds: that the group has between being asked to end and being killed.
        log: file that the command's output is added to.
    """
    parent, names = os.getppid(), dict[str, int]()
    for ending in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)  # the pipe alone says when it is over
    with open(log, "ab") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    print(child.pid, flush=True)
    asked = False
    while not asked and not has_ended(child.pid):
        asked = bool(select.select([0], [], [], POLL_SECONDS)[0]) or os.getppid() != parent
        names |= memory_names(members(child.pid))
    end_group(child.pid, seconds if asked else 0.0)
    code = child.wait()
    in_use = memory_names(int(entry) for entry in os.listdir("/proc") if entry.isdigit()) if names else {}
    for name in names.keys() - in_use.keys():
        with contextlib.suppress(OSError):
            if (SHARED / name).stat().st_ino == names[name]:
                (SHARED / name).unlink()
    return code if code >= 0 else 128 - code


def has_ended(pid: int) -> bool:
    """Return whether a child has ended. It is not waited for: until then nobody else gets its number, nor its group's."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_group(group: int, seconds: float) -> None:
    """Ask a group to end, and kill what is left of it after so many seconds; with 0 at once."""
    for sent, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + wait
        with contextlib.suppress(ProcessLookupError):
            if wait > 0:
                os.killpg(group, sent)
        while time.monotonic() < deadline and (members(group) or not has_ended(group)):
            time.sleep(0.05)


def members(group: int) -> list[int]:
    """Return the processes of a group that have not ended; none where the system does not show processes as files."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group = (
                entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            )
            if int(of_group) == group and state not in "ZX":
                found.append(int(entry.parent.name))
    return found


def memory_names(processes: Iterable[int]) -> dict[str, int]:
    """Return the names of shared memory that processes hold, each with its inode: a mapping shows a name that was there before."""
    held = set[int]()
    for process in processes:
        with contextlib.suppress(OSError, ValueError):
            for line in (
                Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
            ):
                if f" {SHARED}/" in line:
                    held.add(int(line.split(maxsplit=5)[4]))
    named = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHARED) if held else ():
            if entry.name.startswith(OF_PROCESSES) and entry.inode() in held:
                named[entry.name] = entry.inode()
    return named


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
