"""Kernel interfaces that the standard library lacks."""

from __future__ import annotations

import ctypes
import os
import platform

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38

MACHINE = platform.machine()

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, argument: int = 0, pointer: int | None = None) -> None:
    """Set an option of this process. Raises OSError where the kernel refuses."""
    zero = ctypes.c_ulong(0)
    call_libc("prctl", option, ctypes.c_ulong(argument), ctypes.c_void_p(pointer), zero, zero)


def drop_capabilities() -> None:
    """Empty the permitted, effective and inheritable sets. None comes back: `no_new_privs` is set and nothing is executed."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    call_libc("capset", header, (ctypes.c_uint32 * 6)())


def call_libc(function: str, *arguments: object) -> int:
    """Return the result of a function of the C library. Raises OSError where the kernel refuses."""
    result: int = getattr(_libc, function)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
