"""Grading of programs: standard input in, standard output out, the comparison is made here."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Iterator

from covey.rewards.sandbox.calls import ended_verdict, raised_verdict
from covey.rewards.sandbox.child import Child, ChildEnded, TooLate, TooMuch
from covey.rewards.sandbox.compare import same_output
from covey.rewards.sandbox.grade import Grade, Program, StdioJob, Verdict
from covey.rewards.sandbox.inside.answers import checked
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.zygote import Zygote

MAX_TIMEOUTS = 2
"""Tests of one program that may run out of time before the rest is not run: it is the slow ones that hold up a step."""


def grade_stdio(zygote: Zygote, job: StdioJob, limits: Limits, stop_early: bool = False) -> Grade:
    """Run the program once for each test, each time in a fresh process."""
    verdicts: list[Verdict] = []
    cpu_seconds = peak_mb = 0.0
    for stdin, expected in job.tests:
        program = run_program(zygote, job.code, stdin, limits)
        cpu_seconds, peak_mb = cpu_seconds + program.cpu_seconds, max(peak_mb, program.peak_mb)
        verdict = Verdict(program.status, program.detail)
        if program.status == "ok" and not same_output(expected, program.stdout):
            verdict = Verdict("wrong", f"wrote {program.stdout[:200]!r}, expected {expected[:200]!r}")
        verdicts.append(verdict)
        num_timeouts = sum(v.status == "timeout" for v in verdicts)
        if (stop_early and verdict.status != "ok") or num_timeouts == MAX_TIMEOUTS:
            break
    rest = [Verdict("wrong", "not run")] * (len(job.tests) - len(verdicts))
    return Grade((*verdicts, *rest), cpu_seconds, peak_mb)


def run_program(zygote: Zygote, code: str, stdin: str, limits: Limits) -> Program:
    """Run one program with `stdin` as its standard input."""
    with _Streams(limits.output_bytes) as streams, Child(zygote, limits, streams.theirs) as child:
        streams.close_theirs()
        try:
            child.send({"mode": "stdio", "code": code})
            streams.pump(stdin.encode("utf-8", "replace"), child.channel.fileno(), child.deadline)
            match checked(child.receive()):
                case ("ended",):
                    verdict = Verdict("ok")
                case ("raised", str(kind), str(text)):
                    verdict = raised_verdict(kind, text)
                case _:
                    verdict = Verdict("crash", "it did not say how it ended")
        except (ChildEnded, TooLate, TooMuch) as error:
            verdict = ended_verdict(error, child.close(), limits)
        spent = (end.cpu_seconds, end.peak_mb) if (end := child.close()) else (0.0, 0.0)
        stdout, stderr = (streams.written[number].decode("utf-8", "replace") for number in (1, 2))
        return Program(verdict.status, stdout, stderr, verdict.detail, *spent)


class _Streams(contextlib.AbstractContextManager["_Streams"]):
    """Pipes for standard input, output and error, with the bytes that were written to the latter two."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.written: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        pairs = {0: os.pipe(), 1: os.pipe(), 2: os.pipe()}
        self.theirs = {0: pairs[0][0], 1: pairs[1][1], 2: pairs[2][1]}
        self.ours = {0: pairs[0][1], 1: pairs[1][0], 2: pairs[2][0]}
        for descriptor in self.ours.values():
            os.set_blocking(descriptor, False)

    def __exit__(self, *_: object) -> None:
        self.close_theirs()
        for number in list(self.ours):
            self._close(number)

    def close_theirs(self) -> None:
        """Close the child's ends: it has copies, and while ours are open, no end of file is seen."""
        while self.theirs:
            os.close(self.theirs.popitem()[1])

    def pump(self, stdin: bytes, channel: int, deadline: float) -> None:
        """Feed and read the streams until the program speaks on its channel or ends.

        Raises:
            TooLate, TooMuch
        """
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ, 3)
            for number, descriptor in self.ours.items():
                selector.register(
                    descriptor, selectors.EVENT_WRITE if number == 0 else selectors.EVENT_READ, number
                )
            for number in self._ready(selector, deadline):
                if number == 3:
                    break
                if number == 0:
                    try:
                        stdin = stdin[os.write(self.ours[0], stdin[:65_536]) :]
                    except BlockingIOError:
                        pass
                    except OSError:  # a program that does not read is not to blame
                        stdin = b""
                    still_open = bool(stdin)
                else:
                    still_open = self._read(number)
                if not still_open:
                    selector.unregister(self.ours[number])
                    self._close(number)
        for number in (1, 2):  # what was written before the last word
            while number in self.ours and self._read(number):
                pass

    def _ready(self, selector: selectors.BaseSelector, deadline: float) -> Iterator[int]:
        """Yield the numbers of streams that can be read or written, 3 for the channel."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TooLate
            for key, _ in selector.select(left):
                if key.fd in (*self.ours.values(),) or key.data == 3:
                    yield key.data

    def _read(self, number: int) -> bool:
        """Read what there is; return whether there may be more."""
        try:
            part = os.read(self.ours[number], 65_536)
        except BlockingIOError:
            return False
        self.written[number] += part
        if len(self.written[number]) > self.max_bytes:
            raise TooMuch(
                f"more than {self.max_bytes} bytes written to {'stdout' if number == 1 else 'stderr'}"
            )
        return bool(part)

    def _close(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.close(self.ours.pop(number))
