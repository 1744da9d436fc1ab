"""Verdicts of trusted tests, run in a child against functions of another child, over a socket on descriptor 4.

The functions that the tests call are proxies. Values cross as exact builtin types, so no `__eq__`, no subclass and no
shadowed name of the candidate reaches a comparison. The verdicts go to the host on descriptor 3, which the candidate
does not have.

What a proxy cannot carry is not held against the candidate: a test that needs it is `unsupported`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .answers import NO_ANSWER, checked
from .candidate import CHANNEL, describe
from .codec import Malformed, Opaque, decode, encode
from .frames import Closed, read_bytes, write_bytes

PEER = 4


class Unjudgeable(BaseException):
    """A test asks for what cannot cross: a callable, an object, an attribute. Not an Exception: tests must not catch it."""


class CandidateGone(BaseException):
    """The candidate's process ended, or said something that is no answer."""


class CandidateError(Exception):
    """An exception of a class that the candidate made."""


def run(limits: Mapping[str, int]) -> None:
    """Read the job, run its tests, send a verdict on each, and end this process; `limits` holds the fields of `Limits`."""
    job = decode(read_bytes(CHANNEL))
    peer = _Peer(limits["result_bytes"])
    random.seed(0)
    fault = peer.start_fault()
    if fault is not None:
        write_bytes(CHANNEL, encode(fault))
        os._exit(0)
    namespace = {"__name__": "tests", **{name: Proxy(peer, target) for name, target in job["names"].items()}}
    for number, test in enumerate([job["setup"], *job["tests"]]):
        verdict = _verdict(test, namespace)
        if number == 0 and verdict[0] == "failed" and not peer.num_calls:
            verdict = ("broken", verdict[1])  # the candidate had no part in it
        write_bytes(CHANNEL, encode(verdict))
        if verdict[0] in ("gone", "broken"):
            break
    os._exit(0)


def _verdict(test: str, namespace: dict[str, object]) -> tuple[str, ...]:
    """Return (`passed`,), or (`failed` | `unsupported` | `gone` | `broken`, why)."""
    try:
        code = compile(test, "<tests>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return "broken", str(error)
    try:
        exec(code, namespace)
    except Unjudgeable as error:
        return "unsupported", str(error)
    except CandidateGone as error:
        return "gone", str(error)
    except BaseException as error:
        kind, text = describe(error)
        return "failed", f"{kind}: {text}"
    return ("passed",)


@dataclass
class _Peer:
    """The candidate's end of the socket."""

    max_bytes: int
    num_calls: int = 0

    def start_fault(self) -> tuple[object, ...] | None:
        """Wait until the candidate is ready; return the verdict on one that will not be."""
        try:
            answer = self._receive()
        except CandidateGone as error:
            return "gone", str(error)
        if answer[0] == "raised":
            return answer
        return None if answer == ("ready",) else ("gone", NO_ANSWER)

    def call(self, name: str, arguments: list[object], keywords: dict[str, object]) -> tuple[object, ...]:
        """Send a request; return the answer."""
        self.num_calls += 1
        try:
            request = encode((name, arguments, keywords))
        except (Opaque, RecursionError) as error:
            if str(error).endswith(
                Unreadable.__qualname__
            ):  # the candidate's own return is handed back to it
                raise TypeError(
                    f"{name} is called with what the candidate returned, which does not cross"
                ) from None
            raise Unjudgeable(f"{name} is called with {error}") from None
        try:
            write_bytes(PEER, request)
        except OSError as error:
            raise CandidateGone(str(error)) from None
        return self._receive()

    def _receive(self) -> tuple[object, ...]:
        try:
            return checked(decode(read_bytes(PEER, self.max_bytes + 1024)))
        except (Closed, Malformed, OSError) as error:
            raise CandidateGone(str(error)) from None


class Proxy:
    """A function of the candidate, called in its own process. Arguments that it changes in place are changed here."""

    def __init__(self, peer: _Peer, name: str) -> None:
        self._peer, self._name = peer, name

    def __call__(self, *arguments: object, **keywords: object) -> object:
        match self._peer.call(self._name, list(arguments), keywords):
            case ("value", value, changed):
                if isinstance(changed, list):
                    _change_in_place(arguments, changed)
                return value
            case ("raised", str(kind), str(text)):
                raise _exception(kind, text)
            case ("opaque", str(kind)):
                return Unreadable(kind)
            case ("missing", _):
                raise NameError(f"name {self._name!r} is not defined")
        raise CandidateGone(NO_ANSWER)

    def __getattr__(self, attribute: str) -> object:
        raise Unjudgeable(f"{self._name}.{attribute} is asked for")


class Unreadable:
    """A returned value that does not cross. It equals nothing, so a comparison fails the candidate.

    Asking it for a method that no builtin type has shows that the tests are made for objects: `unsupported`.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __eq__(self, other: object) -> bool:
        return False

    def __bool__(self) -> bool:
        raise TypeError(f"the candidate returned {self._kind}")

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__") or any(hasattr(kind, attribute) for kind in _BUILTIN_TYPES):
            raise AttributeError(f"the candidate returned {self._kind}, which has no {attribute!r} here")
        raise Unjudgeable(f"{attribute!r} of a returned {self._kind} is asked for")


_BUILTIN_TYPES = (int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)
_EXCEPTIONS = {
    kind.__name__: kind
    for kind in vars(__import__("builtins")).values()
    if isinstance(kind, type) and issubclass(kind, Exception)
}


def _exception(kind: str, text: str) -> Exception:
    """Return the exception that the candidate raised, as one of a builtin class; nothing that ends the tests."""
    try:
        return _EXCEPTIONS[kind](text)
    except (KeyError, TypeError):  # not a builtin exception, or one that wants other arguments
        return CandidateError(f"{kind}: {text}")


def _change_in_place(arguments: Sequence[Any], changed: Sequence[Any]) -> None:
    """Give mutable arguments the contents that they have after the call."""
    for before, after in zip(arguments, changed, strict=False):
        if type(before) is not type(after):
            continue
        if type(before) in (list, bytearray):
            before[:] = after
        elif type(before) in (set, dict):
            before.clear()
            before.update(after)
