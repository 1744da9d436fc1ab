"""Namespaces, a third wall: own network, processes, IPC and host name.

Made once, by the zygote; needs a privilege or user namespaces.
"""

from __future__ import annotations

import os

from .kernel import call_libc

FLAGS = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000}


def enter() -> list[str]:
    """Enter new namespaces, as many as the kernel lets us; return their names.

    The process itself stays in its PID namespace; its next child is the first of the new one.
    """
    names = ["pid", "net", "ipc", "uts"]
    for attempt in (names, ["user", *names]):
        uid, gid = os.getuid(), os.getgid()
        try:
            call_libc("unshare", sum(FLAGS[name] for name in attempt))
        except OSError:
            continue
        if "user" in attempt:
            _map_ids(uid, gid)
        return attempt
    return []


def _map_ids(uid: int, gid: int) -> None:
    """Stay the same user inside; where the maps cannot be written, the user is nobody, which is as good."""
    for path, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        try:
            with open(f"/proc/self/{path}", "w", encoding="ascii") as file:
                file.write(text)
        except OSError:
            return
