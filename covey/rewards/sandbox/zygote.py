"""Host's side of a fork server: starts it, asks it for children, ends it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from covey.errors import SandboxError
from covey.rewards.sandbox.inside.zygote import MESSAGE, UNUSED
from covey.rewards.sandbox.limits import ALL_WALLS, Limits, Walls

START_SECONDS = 300.0
"""Guards against a process that never gets ready. What it imports may be large, and the machine others' too."""

_SCRIPT = Path(__file__).parent / "inside" / "zygote.py"

_running: weakref.WeakSet[Zygote] = weakref.WeakSet()


def _let_go() -> None:
    """Close a fork's copies of the control sockets: with one of them open, the zygotes would outlive this process."""
    for zygote in list(_running):
        zygote._control.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


class ZygoteGone(SandboxError):
    """The fork server was killed; a new one can be started."""


class Zygote:
    """A small Python process that forks children.

    Args:
        limits: what each child may use.
        locked: children lock themselves before they read a job. False is for code that is ours and only needs to be
            killable; it runs with the host's rights.
        walls: which of the walls to use where the machine offers them.
        preload: modules to import before the first fork.
        paths: added to the module search path. Without one, there is the standard library and nothing else.

    Raises:
        SandboxError: it cannot be started.
    """

    def __init__(
        self,
        limits: Limits,
        locked: bool = True,
        walls: Sequence[str] = ALL_WALLS,
        preload: Sequence[str] = (),
        paths: Sequence[str] = (),
    ) -> None:
        if not hasattr(os, "fork"):
            raise SandboxError(f"Code cannot be run in a child process on {sys.platform}: there is no fork.")
        import fcntl  # of Unix alone; without it this module is imported all the same

        self._lock = threading.Lock()
        self._is_lost = False
        self._control, low = socket.socketpair()
        with low:  # above the standard numbers, which are given away where the host has closed its own
            theirs = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3))
        settings = {
            "control": theirs.fileno(),
            "folder": str(_SCRIPT.parent.parent),
            "limits": asdict(limits),
            "locked": locked,
            "walls": list(walls),
            "preload": list(preload),
            "paths": list(paths),
        }
        with theirs:
            self._process = _start(settings, theirs.fileno())
        self._finalizer = weakref.finalize(self, _end, self._process, self._control, os.getpid())
        _running.add(self)
        self.walls = self._greet()

    def spawn(self, descriptors: Mapping[int, int]) -> socket.socket:
        """Ask for a child with the given descriptors, {number in the child: descriptor here}; return its leash.

        Closing the leash, or writing to it, kills the child. How it ended comes out of the leash.

        Raises:
            ZygoteGone: the zygote was killed.
        """
        leash, theirs = socket.socketpair()
        targets = bytes(descriptors).ljust(MESSAGE, bytes([UNUSED]))
        try:
            with theirs, self._lock:
                socket.send_fds(self._control, [targets], [theirs.fileno(), *descriptors.values()])
        except OSError as error:
            leash.close()
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            self.give_up()
            raise ZygoteGone(f"The sandbox's fork server is gone ({error}).") from error
        return leash

    def give_up(self) -> None:
        """Mark it as broken: a child's end was not reported. The process that is seen from here may run on for a moment."""
        self._is_lost = True

    @property
    def is_alive(self) -> bool:
        return not self._is_lost and self._finalizer.alive and self._process.poll() is None

    def close(self) -> None:
        """End the zygote and all its children, and wait for it."""
        self._finalizer()

    def _greet(self) -> Walls:
        """Wait until the zygote is ready; return the walls that it found.

        Raises:
            SandboxError: it did not start.
        """
        self._control.settimeout(START_SECONDS)
        try:
            found = json.loads(self._control.recv(65_536) or b"{}")
        except (OSError, ValueError, RecursionError) as error:
            found = {"error": str(error)}
        self._control.settimeout(None)
        match found:
            case {
                "locked": bool(),
                "seccomp": bool(seccomp),
                "landlock": int(landlock),
                "namespaces": [*namespaces],
            } if all(isinstance(name, str) for name in namespaces):
                return Walls(seccomp, landlock, tuple(namespaces))
            case {"error": str(reason)}:
                pass
            case _:
                reason = "it ended at once" if found == {} else "it sent something else than its walls"
        self.close()
        raise SandboxError(f"The sandbox's fork server did not start: {reason}.")


def _start(settings: Mapping[str, object], control: int) -> subprocess.Popen[bytes]:
    """Start the process in a new session with an empty environment: no signal of the terminal reaches it, no secret of the host either.

    Hostile code gets the standard library alone; trusted code also what installers' hooks (`site`) provide.
    """
    isolated = ["-I", "-S"] if settings["locked"] else ["-I"]
    return subprocess.Popen(
        [sys.executable, *isolated, str(_SCRIPT), json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[control],
        env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    """End the process; as a function of its own, so that the finalizer does not keep the zygote alive."""
    control.close()  # the zygote reads its end and kills what is left
    if os.getpid() != owner:
        return  # a fork of the host has the descriptor, not the process
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
