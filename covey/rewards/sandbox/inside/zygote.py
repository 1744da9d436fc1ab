"""Fork server: forks one child per job, kills it when the host says so, reaps it, and reports how it ended.

Started as `python -I -S zygote.py SETTINGS`, with the control socket on the descriptor that the settings name.

    host → zygote   one message per job: the numbers that descriptors get in the child, and the descriptors themselves;
                    the first of them is the job's leash, a socket between host and zygote
    leash           the host sends a byte or closes it: the child is killed. The child ends: the zygote sends its exit
                    status, CPU time and peak memory, and closes it

The zygote never reads a job, so nothing of one job is in the memory of the next one's child. When the host is gone,
the control socket closes, and the zygote kills what is left and ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

with contextlib.suppress(
    ImportError
):  # the host imports this file for its numbers, also where nothing can be forked
    import fcntl

if TYPE_CHECKING:
    from .lock import FoundWalls

MESSAGE = 8
"""Bytes of a message: descriptor numbers, filled up with `UNUSED`."""
UNUSED = 0xFF
EXIT = struct.Struct(">iidI")
"""Whether a signal ended it, status or signal, CPU seconds, peak memory in KiB."""


_FOLDERS = (
    os.path.dirname(os.path.abspath(__file__)),
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
)
"""Folder of this file and the one above: on the path for the start, but not for the code that is run."""


def main() -> None:
    """Put up the walls that belong to all children, import, tell the host, and serve."""
    _reset_signals()
    settings = json.loads(sys.argv[1])
    sys.path.insert(0, settings["folder"])
    from inside import candidate, landlock, lock, namespaces, preload, seccomp, verdict  # noqa: F401

    sys.path[:] = [*settings["paths"], *(path for path in sys.path if path not in _FOLDERS)]

    walls: FoundWalls = {"locked": settings["locked"], "seccomp": False, "landlock": 0, "namespaces": []}
    if settings["locked"]:
        walls["seccomp"] = "seccomp" in settings["walls"] and seccomp.is_supported()
        walls["landlock"] = landlock.abi() if "landlock" in settings["walls"] else 0
        if "namespaces" in settings["walls"]:
            walls["namespaces"] = namespaces.enter()
    if "pid" in walls["namespaces"]:
        _live_inside(settings["control"])
    control = socket.socket(fileno=settings["control"])
    control.setblocking(True)
    try:
        preload.preload(settings["preload"])
    except BaseException as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    if settings["locked"]:
        lock.die_first()
        if walls["seccomp"]:
            seccomp.template()  # kept: each child only puts its own number into it
    del sys.argv[1:]
    control.send(json.dumps(walls).encode())
    # With `ctypes` also `_ctypes` and `ctypes.util`: the modules, and those that belong to them.
    kept = {m for m in sys.modules for name in settings["preload"] if m.lstrip("_").partition(".")[0] == name}
    _ForkServer(control, settings["limits"], walls, kept).serve()


def _reset_signals() -> None:
    """Drop what the host's signals and files were set to: all of it is inherited, and a blocked SIGCHLD would hide ends."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) == signal.SIG_IGN:  # Python itself ignores the two
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)


def _live_inside(control: int) -> None:
    """Go on as the first process of the new PID namespace; the outer process only waits for it.

    All that is forked dies with the first process of its namespace, and that one dies with the outer process.
    """
    inner = os.fork()
    if inner:
        os.close(control)
        os.waitpid(inner, 0)
        os._exit(0)
    from inside.lock import die_with_parent

    die_with_parent()


class _ForkServer:
    """Loop over the control socket, the leashes, and the ends of children."""

    def __init__(
        self, control: socket.socket, limits: dict[str, int], walls: FoundWalls, kept: Collection[str]
    ) -> None:
        self.control = control
        self.limits = limits
        self.walls = walls
        self.kept = kept  # modules that code may import though the zygote needs them for itself
        self.pids: dict[int, int] = {}  # descriptor of a leash → pid of the child on it
        self.leashes: dict[int, socket.socket] = {}  # pid → its leash
        self.poll = select.poll()
        self.woken, writing = os.pipe()  # a child's end writes to it
        for descriptor in (self.woken, writing):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for descriptor in (control.fileno(), self.woken):
            self.poll.register(descriptor, select.POLLIN)
        gc.collect()
        gc.freeze()  # children touch fewer pages, so fewer are copied

    def serve(self) -> None:
        """Serve until the host is gone."""
        while True:
            ready = {descriptor for descriptor, _ in self.poll.poll()}
            # leashes first: a closed descriptor's number is soon another job's
            for descriptor in ready & self.pids.keys():
                self.poll.unregister(descriptor)
                os.kill(self.pids.pop(descriptor), signal.SIGKILL)
            if self.woken in ready:
                os.read(self.woken, 4096)
                self._reap()
            if self.control.fileno() in ready and not self._fork():
                break
        for pid in self.leashes:
            os.kill(pid, signal.SIGKILL)
        while self.leashes:
            self.leashes.pop(os.wait()[0], None)

    def _fork(self) -> bool:
        """Start the next job's child; return False when the host is gone."""
        message, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE, 16)
        if not message:
            return False
        leash, given = descriptors[0], descriptors[1:]
        pid = os.fork()
        if pid == 0:
            self._become_child(given, [number for number in message if number != UNUSED])
        for descriptor in given:
            os.close(descriptor)
        self.pids[leash] = pid
        self.leashes[pid] = socket.socket(fileno=leash)
        self.poll.register(leash, select.POLLIN)
        return True

    def _become_child(self, given: list[int], targets: list[int]) -> None:
        """Become the child of a job, and end with it: whatever happens, this never returns."""
        try:
            from inside import candidate, lock, verdict

            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # The given descriptors on their numbers, a /dev/null of its own on the other standard ones; no others.
            above_all_targets = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16) for descriptor in given]
            null = os.open(os.devnull, os.O_RDWR)
            for standard in {0, 1, 2} - set(targets):
                os.dup2(null, standard)
            for descriptor, target in zip(above_all_targets, targets, strict=True):
                os.dup2(descriptor, target)
            os.closerange(max(2, *targets) + 1, os.sysconf("SC_OPEN_MAX"))
            lock.lock(self.limits, self.walls)
            lock.forget_tools(self.kept)
            (verdict.run if verdict.PEER in targets else candidate.run)(self.limits)
        finally:
            os._exit(70)

    def _reap(self) -> None:
        """Report the ends of children to the host, on their leashes."""
        while self.leashes:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            leash = self.leashes.pop(pid, None)
            if leash is None:
                continue  # a descendant that lost its parent
            if self.pids.pop(leash.fileno(), None) is not None:
                self.poll.unregister(leash.fileno())
            signaled = os.WIFSIGNALED(status)
            code = os.WTERMSIG(status) if signaled else os.WEXITSTATUS(status)
            with leash, contextlib.suppress(OSError):  # the host may no longer want to know
                leash.send(EXIT.pack(signaled, code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss))


if __name__ == "__main__":
    main()
