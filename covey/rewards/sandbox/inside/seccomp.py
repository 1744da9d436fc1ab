"""Seccomp, the wall that needs no privilege: an allow list of system calls (seccomp, classic BPF).

Whatever is not listed fails with EPERM. Opening a file fails with EACCES, so that Python reports it as usual; `clone3`
fails with ENOSYS, so that the C library asks `clone` and gets EPERM. A call of another architecture kills.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct

from .kernel import MACHINE, PR_SET_SECCOMP, prctl

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, EACCES, ENOSYS = 1, 13, 38

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
OFFSET_NUMBER, OFFSET_ARCHITECTURE, OFFSET_ARGUMENTS = 0, 4, 16
X32_BIT = 0x40000000
ANY_PID = 0x7FFF5A5A
"""Larger than the kernel gives out; stands for a child's own process number."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

Calls = dict[str, tuple[int | None, int | None]]

# name: (x86_64, aarch64); None: the architecture has no such call
ALLOWED: Calls = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "poll": (7, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "select": (23, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "dup": (32, 23),
    "dup2": (33, None),
    "pause": (34, None),
    "nanosleep": (35, 101),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "getcwd": (79, 17),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "set_robust_list": (273, 99),
    "dup3": (292, 24),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "rseq": (334, 293),
}
NO_FILES: Calls = {
    "open": (2, None),
    "stat": (4, None),
    "lstat": (6, None),
    "access": (21, None),
    "readlink": (89, None),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "statx": (332, 291),
    "openat2": (437, 437),
    "faccessat2": (439, 439),
}
NOT_THERE: Calls = {"clone3": (435, 435)}
IOCTL, FCNTL = (16, 29), (72, 25)
KILL, TGKILL, PRLIMIT = (62, 129), (234, 131), (302, 261)

IOCTLS = (0x5401, 0x5450, 0x5451)  # TCGETS, FIONCLEX, FIOCLEX
FCNTLS = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC


def is_supported() -> bool:
    """Return whether there is a table of system calls for this machine."""
    return MACHINE in ARCHITECTURES and struct.calcsize("P") == 8


def install() -> None:
    """Lock this process, for good. It must have `no_new_privs` set."""
    code = template().replace(struct.pack("=I", ANY_PID), struct.pack("=I", os.getpid()))
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    buffer = ctypes.create_string_buffer(header, len(header))
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(buffer))  # SECCOMP_MODE_FILTER


@functools.cache
def template() -> bytes:
    """Return the filter as bytes; signals may go to `ANY_PID` alone, for which each child puts its own number."""
    column = list(ARCHITECTURES).index(MACHINE)
    code = [
        _op(LOAD, OFFSET_ARCHITECTURE),
        _op(JUMP_EQUAL, ARCHITECTURES[MACHINE], 1, 0),
        _op(RETURN, KILL_PROCESS),
        _op(LOAD, OFFSET_NUMBER),
    ]
    if MACHINE == "x86_64":
        code += [_op(JUMP_AT_LEAST, X32_BIT, 0, 1), _op(RETURN, KILL_PROCESS)]
    for table, verdict in ((ALLOWED, ALLOW), (NO_FILES, ERRNO | EACCES), (NOT_THERE, ERRNO | ENOSYS)):
        for number in (numbers[column] for numbers in table.values()):
            if number is not None:
                code += [_op(JUMP_EQUAL, number, 0, 1), _op(RETURN, verdict)]
    code += _if_argument(IOCTL[column], 1, IOCTLS) + _if_argument(FCNTL[column], 1, FCNTLS)
    code += _if_argument(KILL[column], 0, (ANY_PID,)) + _if_argument(TGKILL[column], 0, (ANY_PID,))
    code += _if_reading_limits(PRLIMIT[column])
    code.append(_op(RETURN, ERRNO | EPERM))
    return b"".join(code)


def _op(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _if_argument(number: int, index: int, values: tuple[int, ...]) -> list[bytes]:
    """Allow a call whose argument `index` is one of the values; EPERM otherwise. All 64 bits are compared."""
    low = OFFSET_ARGUMENTS + 8 * index
    body = [_op(LOAD, low + 4), _op(JUMP_EQUAL, 0, 0, 2 * len(values) + 1), _op(LOAD, low)]
    for value in values:
        body += [_op(JUMP_EQUAL, value, 0, 1), _op(RETURN, ALLOW)]
    body.append(_op(RETURN, ERRNO | EPERM))
    return [_op(JUMP_EQUAL, number, 0, len(body)), *body]


def _if_reading_limits(number: int) -> list[bytes]:
    """Allow `prlimit64` on itself without a new limit."""
    words = [OFFSET_ARGUMENTS + 8 * argument + half for argument in (0, 2) for half in (0, 4)]
    body: list[bytes] = []
    for place, word in enumerate(words):
        remaining = 2 * (len(words) - place - 1)
        body += [_op(LOAD, word), _op(JUMP_EQUAL, 0, 0, remaining + 1)]
    body += [_op(RETURN, ALLOW), _op(RETURN, ERRNO | EPERM)]
    return [_op(JUMP_EQUAL, number, 0, len(body)), *body]
