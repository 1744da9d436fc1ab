"""Verdicts of trusted tests, run in a child against functions of another child, over a socket on descriptor 4.

The functions that the tests call are proxies. Values cross as exact builtin types, so no `__eq__`, no subclass and no
shadowed name of the candidate reaches a comparison. The verdicts go to the host on descriptor 3, which the candidate
does not have.

What a proxy cannot carry is not held against the candidate: a test that needs it is `unsupported`.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .answers import NO_ANSWER, checked
from .candidate import CHANNEL, MORE
from .codec import ANSWER_DEPTH, Malformed, Opaque, decode, encode
from .exceptions import describe, exception_of
from .frames import Closed, read_bytes, write_bytes
from .library import DRAWING, containers

PEER = 4


class Unjudgeable(BaseException):
    """A test asks for what cannot cross: a callable, an object, an attribute. Not an Exception: tests must not catch it."""


class CandidateGone(BaseException):
    """The candidate's process ended, or said something that is no answer."""


def run(limits: Mapping[str, int]) -> None:
    """Read the job, run its tests, send a verdict on each, and end this process; `limits` holds the fields of `Limits`."""
    job = decode(read_bytes(CHANNEL))
    peer = _Peer(limits["result_bytes"], "\n".join([job["setup"], *job["tests"]]))
    random.seed(0)
    if (fault := peer.start_fault()) is not None:
        write_bytes(CHANNEL, encode(fault))
        os._exit(0)
    DRAWING.begin(peer.more, peer.sources)
    namespace = {"__name__": "tests", **proxies(peer, job["names"], job["objects"])}
    absent = [f"NameError: name {name!r} is not defined" for name in job["names"].keys() - namespace.keys()]
    for number, test in enumerate([job["setup"], *job["tests"]]):
        verdict = _verdict(test, namespace)
        misses = verdict[-1] in absent
        if number == 0 and verdict[0] == "failed" and not peer.num_calls and not misses:
            verdict = ("broken", verdict[1])  # the candidate had no part in it
        write_bytes(CHANNEL, encode(verdict))
        if verdict[0] in ("gone", "broken"):
            break
    os._exit(0)


def proxies(peer: _Peer, names: Mapping[str, str], objects: Sequence[str]) -> dict[str, object]:
    """Return the functions of the code by their names in the tests.

    What the code does not define is not there, as in one process; only an object whose attributes are asked for could be
    meant to come from elsewhere, and is not held against the code.
    """
    return {n: Proxy(peer, target) for n, target in names.items() if target in peer.defined or n in objects}


def _verdict(test: str, namespace: dict[str, object]) -> tuple[str, ...]:
    """Return (`passed`,), or (`failed` | `unsupported` | `gone` | `broken`, why)."""
    try:
        code = compile(test, "<tests>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "broken", str(error)
    try:
        exec(code, namespace)
    except Unjudgeable as error:
        return "unsupported", str(error)
    except CandidateGone as error:
        return "gone", str(error)
    except BaseException as error:
        kind, text = describe(error)
        if text.startswith(_CATCHES_NO_CLASS) and not hasattr(error, "crossed"):
            return "unsupported", "an exception of a class of the code is to be caught"
        return "failed", f"{kind}: {text}"
    return ("passed",)


_CATCHES_NO_CLASS = "catching classes that do not inherit from BaseException"


@dataclass
class _Peer:
    """The candidate's end of the socket."""

    max_bytes: int
    sources: str
    """Setup and tests, which may name the exceptions that they expect."""
    num_calls: int = 0
    defined: Mapping[object, object] = field(default_factory=dict)
    """Those of the tests' names that the code defines → whether it is a class, as far as it can be believed."""

    def start_fault(self) -> tuple[object, ...] | None:
        """Wait until the candidate is ready; return the verdict on one that will not be."""
        try:
            answer = self._receive()
        except CandidateGone as error:
            return "gone", str(error)
        match answer:
            case ("raised", *_):
                return answer
            case ("ready", dict(defined)):
                self.defined = defined
                return None
        return "gone", NO_ANSWER

    def call(self, name: str, arguments: list[object], keywords: dict[str, object]) -> tuple[object, ...]:
        """Send a request; return the answer. Arguments that the candidate changes in place are changed here."""
        self.num_calls += 1
        try:
            request = encode((name, arguments, keywords))
        except (Opaque, RecursionError) as error:
            if (
                type(getattr(error, "culprit", None)) is Unreadable
            ):  # the candidate's own return is handed back
                raise TypeError(f"{name} is called with a returned value that does not cross") from None
            raise Unjudgeable(f"{name} is called with {error}") from None
        known = containers((arguments, keywords))
        answer = self._receive(known, request)
        if answer[0] == "value" and isinstance(answer[2], list):
            for part, content in zip(known, answer[2], strict=False):
                _change_in_place(part, content)
        return answer

    def more(self, number: int) -> tuple[list[object], object]:
        """Return further items of an iterator of the candidate, and how it goes on."""
        match self.call(MORE, [number], {}):
            case ("value", (list(items), end), _):
                return items, end
        raise CandidateGone(NO_ANSWER)

    def _receive(self, known: Sequence[object] = (), request: bytes | None = None) -> tuple[object, ...]:
        """Return the candidate's answer, to a request where there is one; objects of `known` go by their numbers in it."""
        try:
            if request is not None:
                write_bytes(PEER, request)
            data = read_bytes(PEER, self.max_bytes + 1024)
            return checked(decode(data, max_depth=ANSWER_DEPTH, known=known))
        except (Closed, Malformed, OSError) as error:
            raise CandidateGone(str(error)) from None


class Proxy:
    """A function of the candidate, called in its own process."""

    def __init__(self, peer: _Peer, name: str) -> None:
        self._peer, self._name = peer, name

    def __call__(self, *arguments: object, **keywords: object) -> object:
        match self._peer.call(self._name, list(arguments), keywords):
            case ("value", value, _):
                return value
            case ("raised", str(kind), str(text)):
                raise exception_of(kind, text, self._peer.sources)
            case ("opaque", str(kind)):
                return Unreadable(kind, self._peer.defined.get(self._name) is True)
            case ("missing", _):
                raise NameError(f"name {self._name!r} is not defined")
        raise CandidateGone(NO_ANSWER)

    def __getattr__(self, attribute: str) -> object:
        raise Unjudgeable(f"{self._name}.{attribute} is asked for")


class Unreadable:
    """A returned value that does not cross. It equals no value, so a comparison with one fails the candidate.

    Comparing it with an object that the tests made of a class of the code, or asking it for a method that no builtin type
    has, shows that the tests are made for objects: `unsupported`.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: str, is_made: bool = False) -> None:
        self._kind = kind
        self.is_made = is_made  # by calling a class of the code

    def __eq__(self, other: object) -> bool:
        if _holds_made(other) or (self.is_made and isinstance(other, Unreadable)):
            raise Unjudgeable(f"two objects of the code are compared, one a {self._kind}")
        return False

    def __bool__(self) -> bool:
        raise TypeError(f"the candidate returned {self._kind}")

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__") or any(hasattr(kind, attribute) for kind in _BUILTIN_TYPES):
            raise AttributeError(f"the candidate returned {self._kind}, which has no {attribute!r} here")
        raise Unjudgeable(f"{attribute!r} of a returned {self._kind} is asked for")


_BUILTIN_TYPES = (int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)


def _holds_made(value: object) -> bool:
    """Return whether a value is, or holds at any place, an object that the tests made of a class of the code."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return any(map(_holds_made, value))
    return isinstance(value, Unreadable) and value.is_made


def _change_in_place(part: Any, content: Any) -> None:
    """Give a container the contents that it has after the call."""
    if type(part) is not type(content):
        return
    if isinstance(part, list | bytearray):
        part[:] = content
        return
    part.clear()
    if isinstance(part, dict):
        dict.update(part, content)
    elif isinstance(part, deque):
        part.extend(content)
    else:
        part.update(content)
