"""Host's side of one child: messages before a deadline, and the way the child ended."""

from __future__ import annotations

import contextlib
import functools
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from covey.rewards.sandbox.inside.answers import safe_text
from covey.rewards.sandbox.inside.codec import Malformed, decode, encode
from covey.rewards.sandbox.inside.frames import HEADER, Closed, read_exactly
from covey.rewards.sandbox.inside.zygote import EXIT
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.zygote import Zygote

A = TypeVar("A")
T = TypeVar("T")

REAP_SECONDS = 60.0
"""Seconds within which the end of a killed child is reported, on a busy machine."""

COUNTED = 0.5
"""Share of the limit that a child which was stopped by it has spent at least.

The kernel keeps the limit by counting ticks and reports time as it was spent; on a busy machine the two differ.
"""


class ChildEnded(Exception):
    """The child's end of the channel is closed, or it sent something that is no message."""


class TooLate(Exception):
    """The deadline came first."""


class TooMuch(Exception):
    """It sent more than it may."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End of a child, as the kernel reported it to the zygote."""

    signaled: bool
    code: int
    """Number of the signal, or exit status."""
    cpu_seconds: float
    peak_mb: float

    def ran_out(self, limits: Limits) -> bool:
        """Return whether its processor time was up: that of its limits, or one that it set itself a timer for."""
        if self.signaled and self.code == signal.SIGPROF:
            return True
        by_limit = self.signaled and self.code in (signal.SIGXCPU, signal.SIGKILL)
        return by_limit and self.cpu_seconds >= limits.cpu_seconds * COUNTED


class Child(contextlib.AbstractContextManager["Child"]):
    """A child with a channel to the host.

    Args:
        descriptors: further descriptors, {number in the child: descriptor here}.
    """

    def __init__(self, zygote: Zygote, limits: Limits, descriptors: Mapping[int, int] | None = None) -> None:
        self.limits, self.zygote = limits, zygote
        self.deadline = time.monotonic() + limits.wall_seconds
        self.channel, theirs = socket.socketpair()
        self._received = 0
        with theirs, contextlib.ExitStack() as unused:
            unused.callback(self.channel.close)
            self.leash = zygote.spawn({**(descriptors or {}), 3: theirs.fileno()})
            unused.pop_all()
        self._exit: Exit | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def hand_over(self) -> None:
        """Leave the channel to another child that has a copy of it, in the blocking mode that children read in."""
        self.channel.setblocking(True)
        self.channel.close()

    def within(self, seconds: float) -> Child:
        """Move the deadline to `seconds` from now."""
        self.deadline = time.monotonic() + seconds
        self._received = 0
        return self

    def send(self, value: object) -> None:
        """Send a message.

        Raises:
            ChildEnded, TooLate
        """
        payload = encode(value)
        self._before_deadline(self.channel.sendall, HEADER.pack(len(payload)) + payload)

    def receive(self, hashed: bool = False) -> Any:
        """Return the next message; sets and dictionaries in it are `Bag` and `Pairs`, unless the child is trusted (`hashed`).

        Raises:
            ChildEnded, TooLate, TooMuch
        """
        read = functools.partial(self._before_deadline, self.channel.recv)
        try:
            size = HEADER.unpack(read_exactly(read, HEADER.size))[0]
            self._received += size
            if self._received > self.limits.result_bytes + 4096:
                raise TooMuch(f"values of {self._received} bytes")
            return decode(read_exactly(read, size), hashed=hashed)
        except Closed:
            raise ChildEnded("it ended") from None
        except (Malformed, RecursionError) as error:
            raise ChildEnded(f"it sent no message: {safe_text(error)}") from None

    def kill(self) -> None:
        """Kill the child where it still runs, without waiting for its end."""
        with contextlib.suppress(OSError):  # it may have ended already; its exit still waits in the leash
            self.leash.send(b"k")

    def close(self) -> Exit | None:
        """Kill the child where it still runs, wait for its end; return how it ended, None where the zygote is gone too.

        A zygote that does not report an end is given up, so that the next child comes from another one.
        """
        if self._exit is None and self.leash.fileno() >= 0:
            self.channel.close()
            self.kill()
            try:
                with self.leash:
                    self.leash.settimeout(REAP_SECONDS)
                    signaled, code, cpu_seconds, peak_kib = EXIT.unpack(self.leash.recv(EXIT.size))
            except (OSError, struct.error):
                self.zygote.give_up()
            else:
                self._exit = Exit(bool(signaled), code, cpu_seconds, peak_kib / 1024)
        return self._exit

    def _before_deadline(self, operation: Callable[[A], T], argument: A) -> T:
        """Return what an operation on the channel returns, before the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TooLate
        self.channel.settimeout(left)
        try:
            return operation(argument)
        except TimeoutError:
            raise TooLate from None
        except OSError as error:
            raise ChildEnded(str(error)) from None
