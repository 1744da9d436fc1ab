"""The host's side of one child: what it says, before a deadline, and how it ended."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from covey.rewards.sandbox.inside.codec import Malformed, decode, encode
from covey.rewards.sandbox.inside.frames import HEADER
from covey.rewards.sandbox.inside.zygote import EXIT
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.zygote import Zygote

REAP_SECONDS = 10.0
"""How long the end of a killed child may take to be reported, on a busy machine."""


COUNTED = 0.5
"""The kernel keeps the limit by counting ticks and reports time as it was spent; on a busy machine the two differ."""


class ChildEnded(Exception):
    """The child's end of the channel is closed, or it said something that is no message."""


class TooLate(Exception):
    """The deadline came first."""


class TooMuch(Exception):
    """It said more than it may."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended, as the kernel told the zygote."""

    signaled: bool
    code: int
    """Number of the signal, or exit status."""
    cpu_seconds: float
    peak_mb: float

    def ran_out(self, limits: Limits) -> bool:
        """Whether its processor time was up: that of its limits, or one that it set itself a timer for."""
        if self.signaled and self.code == signal.SIGPROF:
            return True
        by_limit = self.signaled and self.code in (signal.SIGXCPU, signal.SIGKILL)
        return by_limit and self.cpu_seconds >= limits.cpu_seconds * COUNTED


class Child:
    """A child with a channel to the host.

    Args:
        descriptors: further descriptors, {number in the child: descriptor here}.
    """

    def __init__(self, zygote: Zygote, limits: Limits, descriptors: Mapping[int, int] | None = None) -> None:
        self.limits = limits
        self.deadline = time.monotonic() + limits.wall_seconds
        self._channel, theirs = socket.socketpair()
        self._received = 0
        with theirs:
            self.leash = zygote.spawn({**(descriptors or {}), 3: theirs.fileno()})
        self._exit: Exit | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def channel(self) -> socket.socket:
        return self._channel

    def hand_over(self) -> None:
        """Leave the channel to another child that has a copy of it, in the blocking mode that children read in."""
        self._channel.setblocking(True)
        self._channel.close()

    def within(self, seconds: float) -> Child:
        """Move the deadline to `seconds` from now."""
        self.deadline = time.monotonic() + seconds
        self._received = 0
        return self

    def send(self, value: Any) -> None:
        """
        Raises:
            ChildEnded, TooLate
        """
        payload = encode(value)
        self._patiently(self._channel.sendall, HEADER.pack(len(payload)) + payload)

    def receive(self, hashed: bool = False) -> Any:
        """The next message; sets and dictionaries in it are `Bag` and `Pairs`, unless the child is trusted (`hashed`).

        Raises:
            ChildEnded, TooLate, TooMuch
        """
        size = HEADER.unpack(self._exactly(HEADER.size))[0]
        self._received += size
        if self._received > self.limits.result_bytes + 4096:
            raise TooMuch(f"values of {self._received} bytes")
        try:
            return decode(self._exactly(size), hashed=hashed)
        except (Malformed, RecursionError) as error:
            raise ChildEnded(f"it sent no message: {error}") from None

    def kill(self) -> None:
        """Kill the child where it still runs, without waiting for its end."""
        with contextlib.suppress(OSError):  # it may have ended already; its exit still waits in the leash
            self.leash.send(b"k")

    def close(self) -> Exit | None:
        """Kill the child where it still runs, wait for its end; how it ended, None where the zygote is gone too."""
        if self._exit is None and self.leash.fileno() >= 0:
            self._channel.close()
            self.kill()
            self._exit = _read_exit(self.leash)
            self.leash.close()
        return self._exit

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._patiently(self._channel.recv, min(size, 1 << 20))
            if not part:
                raise ChildEnded("it ended")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _patiently(self, operation: Any, argument: Any) -> Any:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TooLate
        self._channel.settimeout(left)
        try:
            return operation(argument)
        except TimeoutError:
            raise TooLate from None
        except OSError as error:
            raise ChildEnded(str(error)) from None


def _read_exit(leash: socket.socket) -> Exit | None:
    leash.settimeout(REAP_SECONDS)
    try:
        data = leash.recv(EXIT.size)
        signaled, code, cpu_seconds, peak_kib = EXIT.unpack(data)
    except (OSError, struct.error):
        return None
    return Exit(bool(signaled), code, cpu_seconds, peak_kib / 1024)
