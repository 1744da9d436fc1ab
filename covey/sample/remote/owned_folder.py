"""Folders that end with their process: deleted when it ends, or by the next one where it was killed.

What lies in /dev/shm takes memory, and outlives the process that wrote it. So each folder has a file that is locked for as long as
its process lives; the lock ends with the process, however that ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO

LOCK = "_running"

TMPFS = Path("/dev/shm")
"""Memory of this machine, as a folder."""


class OwnedFolder:
    """A new folder. Those of dead processes beside it are deleted.

    Args:
        above: where it is made.
        kind: beginning of the names of all such folders there.
        name: goes into its own, behind that.

    Raises:
        OSError: nothing can be written there.
    """

    def __init__(self, above: Path, kind: str, name: str = "") -> None:
        clean(above, kind)
        self.path = Path(tempfile.mkdtemp(prefix=kind + name, dir=above.resolve()))
        self._lock = open(self.path / "locking", "w", encoding="utf-8")  # noqa: SIM115 - open as long as the folder
        if lock(self._lock):
            (self.path / "locking").rename(self.path / LOCK)  # locked as soon as it can be seen
        else:
            (self.path / LOCK).touch()
        self._process = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Delete it; in a process that was forked off, nothing."""
        if self._process == os.getpid():
            atexit.unregister(self.close)
            self._lock.close()
            shutil.rmtree(self.path, ignore_errors=True)


def clean(above: Path, kind: str) -> list[Path]:
    """Delete the folders of processes that are dead, and return them.

    Args:
        kind: beginning of their names.
    """
    gone = []
    for root in sorted(above.glob(f"{kind}*")):
        try:
            with open(root / LOCK, "r+", encoding="utf-8") as file:
                is_dead = lock(file)
        except FileNotFoundError:
            is_dead = _age(root) > 60  # else it is made, or deleted, at this moment
        except OSError:  # another user's
            is_dead = False
        if is_dead:
            shutil.rmtree(root, ignore_errors=True)
            gone.append(root)
    return gone


def _age(folder: Path) -> float:
    """Return the seconds since a folder was changed; 0 where it is gone."""
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0


def lock(file: IO[str]) -> bool:
    """Lock a file; return whether nobody else has it. Without locks nobody is known to be dead."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
