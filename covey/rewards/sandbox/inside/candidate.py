"""The child that runs model-written code. It reads its job on descriptor 3 and answers there.

    stdio   the job's code is a program: standard input and output are its own
    serve   the job's code is executed once; then functions of it are called, one request at a time

A request is (name, arguments, keyword arguments). An answer is one of those in `covey.rewards.sandbox.inside.answers`

    ("ended",)           the program came to its end
    ("ready", names)     the code was executed; the tests' names that it defines → whether it is a class
    ("value", value, changed containers or None)    ("raised", type, text)
    ("opaque", type)     the value is of a type that does not cross        ("missing", name)
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import random
import sys
import types
from collections.abc import Mapping
from typing import Any

from .codec import ANSWER_DEPTH, Opaque, decode, encode
from .exceptions import describe
from .frames import Closed, read_bytes, write_bytes
from .library import DRAWING, containers

CHANNEL = 3
MORE = ""
"""The function that a request names to draw further items of an iterator."""

Request = tuple[str, list[object], dict[str, object]]


def run(limits: Mapping[str, int]) -> None:
    """Read the job, run it, and end this process; `limits` holds the fields of `covey.rewards.sandbox.limits.Limits`."""
    job = decode(read_bytes(CHANNEL))
    random.seed(0)  # the same code gets the same verdict
    _fresh_streams()
    if job["mode"] == "stdio":
        _run_program(job["code"])
    else:
        _serve(job["code"], job["filename"], job.get("names"), limits["result_bytes"])
    os._exit(0)


def _fresh_streams() -> None:
    """Replace the zygote's streams, which are those of its start, by streams on the descriptors of this child."""
    reading = io.BufferedReader(io.FileIO(0, closefd=False))
    streams: dict[str, io.TextIOWrapper] = {
        "stdin": io.TextIOWrapper(reading, encoding="utf-8", errors="replace")
    }
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        writing = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
        streams[name] = io.TextIOWrapper(writing, encoding="utf-8", errors="backslashreplace")
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run_program(code: str) -> None:
    """Execute a program and send how it ended."""
    # Kept: the program may replace them.
    send, to_bytes, streams = write_bytes, encode, (sys.stdout, sys.stderr)
    outcome = execute(code, "__main__", "<program>")[1]
    try:
        for stream in streams:
            stream.flush()
    except BaseException as error:
        outcome = outcome or describe(error)
    if outcome is not None and outcome[0] == "SystemExit" and outcome[1] in ("", "0", "None"):
        outcome = None
    send(CHANNEL, to_bytes(("ended",) if outcome is None else ("raised", *outcome)))


def _serve(code: str, filename: str, names: list[str] | None, max_bytes: int) -> None:
    """Execute the code, send that it is ready, and answer requests until the other end is gone.

    Args:
        names: of the tests that ask; None: it is the host that asks, which does not look at changed arguments.
    """
    answer_of, receive, send, parse = _answer, read_bytes, write_bytes, decode
    namespace, outcome = execute(code, "solution", filename)
    if names is not None:
        DRAWING.begin()
        answer_of = functools.partial(_answer, in_place=True)
    found = {name: namespace.get(name) for name in names or ()}
    defined = {name: isinstance(value, type) for name, value in found.items() if value is not None}
    send(CHANNEL, encode(("ready", defined) if outcome is None else ("raised", *outcome)))
    while True:
        try:
            request = parse(receive(CHANNEL))
        except Closed:
            return
        send(CHANNEL, answer_of(namespace, request, max_bytes))


def _answer(namespace: Mapping[str, Any], request: Request, max_bytes: int, in_place: bool = False) -> bytes:
    """Call a function; return the encoded answer. `in_place` also sends what it did to its arguments."""
    name, arguments, keywords = request
    function: Any = DRAWING.more if name == MORE else namespace.get(name)
    if function is None:
        return encode(("missing", name))
    known = containers((arguments, keywords)) if in_place else []
    numbers = {id(part): number for number, part in enumerate(known)}
    before = [_contents(part, numbers) for part in known]
    try:
        value = function(*arguments, **keywords)
    except BaseException as error:
        return encode(("raised", *describe(error)))
    try:
        after = [_contents(part, numbers) for part in known]
        changes = [
            p.copy() if new and new != old else None for p, new, old in zip(known, after, before, strict=True)
        ]
        answer = encode(("value", value, changes if after != before else None), ANSWER_DEPTH, numbers)
    except Opaque as error:
        return encode(("opaque", str(error)))
    except Exception as error:
        return encode(("raised", *describe(error)))
    return answer if len(answer) <= max_bytes else encode(("opaque", f"a value of {len(answer)} bytes"))


def _contents(part: Any, numbers: Mapping[int, int]) -> bytes:
    """Return the bytes of one container, those inside it by their numbers; none where it holds what does not cross."""
    with contextlib.suppress(Opaque):
        return encode(part.copy(), ANSWER_DEPTH, numbers)
    return b""


def execute(code: str, name: str, filename: str) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """Run code as a module of its own; return its namespace, and how it raised (None: it did not)."""
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    try:
        exec(compile(code, filename, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        return module.__dict__, describe(error)
    return module.__dict__, None
