"""One run at a time in an output_dir: two would write over each other's record and checkpoints.

The file `_running` in output_dir is locked while a run goes on. The lock ends with its process, however that ends, so a run
that was killed can be resumed at once; children of the process do not have it. On a file system without locks the process that
the file names is looked for, as far as it is one of this machine.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from covey.errors import ConfigError
from covey.trainer.checkpoint.faults import first_fault
from covey.types import Gather

LOCK = "_running"
FAR = 1 << 30
"""Byte that is locked on Windows, where a locked byte cannot be read."""


@contextmanager
def only_run(folder: Path, is_first: bool, gather: Gather) -> Iterator[None]:
    """Hold the lock of an output_dir. Collective.

    Args:
        is_first: whether this process takes it, for all of its run.

    Raises:
        ConfigError: in all processes, another run has it.
    """
    file = None
    fault = None
    if is_first:
        folder.mkdir(parents=True, exist_ok=True)
        file, holder = _taken(folder / LOCK)
        fault = (
            None if file is not None else f"output_dir={str(folder)!r} is in use by another run ({holder})."
        )
    fault = first_fault(gather(fault))
    if fault is not None:
        raise ConfigError(
            f"{fault} Two runs would write over each other's checkpoints and record: wait for it, end it, or give another output_dir."
        )
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):  # Windows deletes no open file
                os.unlink(folder / LOCK)
            file.close()


def _taken(path: Path) -> tuple[IO[str] | None, str]:
    """Return the locked file; None where another process has it, and which one that is."""
    while True:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        is_locked = _lock(file)
        file.seek(0)
        holder = file.read(1000)
        if is_locked is False or (is_locked is None and _is_alive(holder)):
            file.close()
            return None, holder or "it does not say which"
        if (
            path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino
        ):  # else its owner ended just now
            break
        file.close()
    file.truncate(0)
    file.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "start": time.ctime()}))
    file.flush()
    return file, ""


def _lock(file: IO[str]) -> bool | None:
    """Lock a file; return False where another process has it, None where the system has no locks."""
    try:
        import fcntl
    except ImportError:
        return _lock_on_windows(file)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of the process: its children do not hold it
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _lock_on_windows(file: IO[str]) -> bool | None:
    """Lock a byte far behind the text; return as `_lock` does."""
    try:
        import msvcrt
    except ImportError:
        return None
    file.seek(FAR)
    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return False
    return True


def _is_alive(holder: str) -> bool:
    """Return whether the process that a lock file names is another one, of this machine, and there."""
    try:
        named = json.loads(holder)
        is_other = named["host"] == platform.node() and int(named["pid"]) != os.getpid()
        if not is_other or os.name != "posix":
            return False
        os.kill(int(named["pid"]), 0)
    except (ValueError, KeyError, TypeError, ProcessLookupError):
        return False
    except PermissionError:  # there, and another user's
        return True
    return True
