"""Landlock, a second wall against files, with nothing allowed. Needs no privilege; Linux 5.13 and later."""

from __future__ import annotations

import ctypes
import struct

from .kernel import call_libc

CREATE_RULESET, RESTRICT_SELF = ctypes.c_long(444), ctypes.c_long(446)
FILE_ACCESS_BITS = (0, 13, 14, 15, 15, 16, 16)
"""Number of file rights by ABI version."""


def abi() -> int:
    """Return the kernel's Landlock version; 0 where it has none."""
    try:
        return call_libc("syscall", CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def install(version: int) -> None:
    """Deny all file access, TCP (from ABI 4 on), and signals and abstract sockets beyond itself (from ABI 6 on)."""
    files = (1 << FILE_ACCESS_BITS[min(version, 6)]) - 1
    attribute = struct.pack("=QQQ", files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = call_libc("syscall", CREATE_RULESET, attribute, ctypes.c_size_t(size), ctypes.c_uint32(0))
    call_libc("syscall", RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
