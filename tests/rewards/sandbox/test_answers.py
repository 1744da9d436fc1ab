"""Whatever a process sends instead of an answer, whoever reads it gives a verdict: no exception, and no pass."""

import functools
import json
import os
import socket
import sys
import types

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from covey.errors import SandboxError
from covey.rewards.rules import json_format, symbolic
from covey.rewards.rules.workers import Workers
from covey.rewards.sandbox.asserts import grade_asserts
from covey.rewards.sandbox.calls import grade_calls
from covey.rewards.sandbox.child import Child
from covey.rewards.sandbox.grade import POLICY_FAULTS, AssertsJob, Call, CallsJob, StdioJob
from covey.rewards.sandbox.inside import verdict
from covey.rewards.sandbox.inside.codec import encode
from covey.rewards.sandbox.inside.frames import HEADER
from covey.rewards.sandbox.inside.zygote import EXIT
from covey.rewards.sandbox.limits import Limits, Walls
from covey.rewards.sandbox.monty import MontyPool
from covey.rewards.sandbox.sandbox import _try_walls
from covey.rewards.sandbox.session import CallFailed, Session
from covey.rewards.sandbox.stdio import grade_stdio
from covey.rewards.sandbox.zygote import Zygote

BIG = 1 << 20_000
"""More digits than Python writes."""
EXPECTED = 271_828
"""Returned by none of the forged answers."""
KINDS = (
    "ready",
    "ended",
    "value",
    "raised",
    "opaque",
    "missing",
    "passed",
    "failed",
    "unsupported",
    "gone",
    "broken",
    "malformed",
)

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["BIG", "LONG", "\ud800"])
    | st.floats()
    | st.complex_numbers()
    | st.sampled_from(KINDS)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    hashable | st.builds(bytearray, st.binary(max_size=5)) | st.sets(hashable, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashable, inner, max_size=3)
    ),
    max_leaves=8,
)
near_misses = st.builds(
    lambda kind, rest: (kind, *rest), st.sampled_from(KINDS), st.lists(values, max_size=4)
)
messages = near_misses | near_misses.map(list) | values


def with_big(value):
    """Return a value with what its names stand for, `BIG` and a long text, which hypothesis could not print."""
    if isinstance(value, dict):
        return {with_big(key): with_big(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(map(with_big, value))
    return {"BIG": BIG, "LONG": "x" * 5_000}.get(value, value) if isinstance(value, str) else value


def for_all_messages(test):
    """Give a test what a process may send: whole messages by kind, near misses, and any other value."""

    @functools.wraps(test)
    def with_integers(message, **others):
        test(message=with_big(message), **others)

    for forged in (
        ("ready", "BIG"),
        ("raised", "BIG", "BIG"),
        ("raised",),
        ("opaque", "BIG"),
        ("ended", ("BIG", "BIG")),
        ("failed", "BIG"),
        ("missing", ["BIG"]),
        ("raised", "ValueError", "LONG"),
        ("value", "BIG", None),
        ("raised", "\ud800", "\ud800"),
        (),
        "BIG",
        [[]],
        ([], 1),
    ):
        with_integers = example(forged)(with_integers)
    return settings(max_examples=50, deadline=None)(given(messages)(with_integers))


class Forger:
    """A zygote whose children send the given messages, and end."""

    walls = Walls(seccomp=True)

    def __init__(self, *messages):
        self.payload = b"".join(HEADER.pack(len(body)) + body for body in map(encode, messages))

    def spawn(self, descriptors):
        with socket.socket(fileno=os.dup(descriptors[3])) as theirs:
            theirs.sendall(self.payload)
            theirs.shutdown(socket.SHUT_WR)
            self.kept = theirs.dup()  # open, so that what the host sends does not fail
        leash, zygotes = socket.socketpair()
        with zygotes:
            zygotes.sendall(EXIT.pack(0, 0, 0.01, 1_000))
        return leash

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if hasattr(self, "kept"):
            self.kept.close()


LIMITS = Limits(wall_seconds=5.0)
CALLS = CallsJob(
    "", (Call("f", (1,), EXPECTED), Call("f", (), {"a": {EXPECTED}}), Call("f", (), [1.5, EXPECTED]))
)


def is_printable(text):
    assert type(text) is str and len(text) < 20_000
    text.encode()
    return True


def blames_the_code(grade):
    assert grade.passed_share == 0.0 and grade.status in POLICY_FAULTS
    return all(is_printable(v.detail) for v in grade.verdicts) and is_printable(grade.detail)


@for_all_messages
def test_calls_before_the_code_is_ready(message):
    with Forger(message, message, message, message) as forger:
        assert blames_the_code(grade_calls(forger, CALLS, LIMITS))


@for_all_messages
def test_answers_to_calls(message):
    with Forger(("ready", {}), message, message, message) as forger:
        assert blames_the_code(grade_calls(forger, CALLS, LIMITS))


@for_all_messages
def test_ends_of_programs(message):
    with Forger(message) as forger:
        assert blames_the_code(grade_stdio(forger, StdioJob("", (("", "1"),)), LIMITS))


@for_all_messages
def test_verdicts_of_the_tests_process(message):
    """A process that is ours: its own words for a pass and for what is not the code's fault are taken."""
    job = AssertsJob("", ("assert f(1)", "assert f(2)"))
    for sent in ((message,) * 3, (("passed",), message, message)):
        with Forger() as candidate, Forger(*sent) as tests:
            grade = grade_asserts(candidate, tests, job, LIMITS)
        if message == ("passed",):
            assert grade.status == "ok"
        elif type(message) is tuple and message[:1] in (("unsupported",), ("broken",)):
            assert grade.passed_share == 0.0 and is_printable(grade.detail)
        else:
            assert blames_the_code(grade)


@for_all_messages
def test_answers_to_the_tests_process(message):
    """The candidate's answers, read by the tests: what is sent on to the host is one of the forms that it takes."""
    peer = verdict._Peer(10**6, "")
    tests = {"f": verdict.Proxy(peer, "f")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict, "read_bytes", lambda *_: encode(message))
        patch.setattr(verdict, "write_bytes", lambda *_: None)
        sent = [verdict._verdict(f"assert f([1]) == {EXPECTED}", tests)]
        sent += [verdict._verdict("f([1]).no_such_method()", tests), verdict._verdict("str(f([1]))", tests)]
        sent += [fault] if (fault := peer.start_fault()) else []
    assert sent[0][0] in ("failed", "gone")
    for answer in sent:
        assert all(type(field) is str for field in answer)
        assert len(answer) == {"passed": 1, "raised": 3}.get(answer[0], 2)


@for_all_messages
@pytest.mark.parametrize("trusted", [False, True])
def test_answers_to_sessions(trusted, message):
    with Forger(("ready", {}), message) as forger:
        session = Session(lambda: Child(forger, LIMITS), "", trusted)
        try:
            session.call("f", seconds=5.0)
            assert type(message) is tuple and message[0] == "value" and len(message) == 3
        except CallFailed as failure:
            assert failure.verdict.status in POLICY_FAULTS and is_printable(str(failure))
        finally:
            session.close()


@for_all_messages
def test_starts_of_sessions(message):
    for sent in ((message, message), (("ready", {}), message)):
        with Forger(*sent) as forger:
            session = Session(lambda: Child(forger, LIMITS), "", trusted=True, setup=("load", 1))
            try:
                session.call("f", seconds=5.0)
            except CallFailed as failure:
                assert is_printable(failure.verdict.detail)
            finally:
                session.close()


@for_all_messages
def test_trials_of_walls(message):
    for sent in ((message, message), (("ready", {}), message)):
        with Forger(*sent) as forger:
            fault = _try_walls(forger, LIMITS)
            assert fault is not None and fault.encode("utf-8", "backslashreplace")


@for_all_messages
def test_values_of_workers(message):
    """Math-verify's and jsonschema's: only their own `True` is a pass."""
    with Forger(("ready", {}), message) as forger, pytest.MonkeyPatch.context() as patch:
        pool = Workers("no_such_module", "f", count=1)
        pool.sessions = [Session(lambda: Child(forger, LIMITS), "", trusted=True)]
        patch.setattr(symbolic, "workers", lambda *_: pool)
        patch.setattr(symbolic, "_remembered", {})
        found = symbolic.compare([("1", "2")], 1.0)[0]
        pool.sessions[0].close()
    is_value = type(message) is tuple and message[:1] == ("value",) and len(message) == 3
    assert found != "same" or (is_value and message[1] is True)
    assert found != "unreadable" or (is_value and message[1] is None)
    assert json_format._score(message) == 0.0


class Monty:
    """As pydantic-monty: hands out sessions that return a value, or raise."""

    MontyCrashedError = type("MontyCrashedError", (Exception,), {"timed_out": False})
    value = None
    fault = None

    def __init__(self, **_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def checkout(self, limits):
        return self

    def feed_run(self, code, inputs):
        if code and self.fault is not None:
            raise self.fault
        return self.value if code else None


@for_all_messages
def test_values_of_monty(message):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            sys.modules,
            "pydantic_monty",
            types.SimpleNamespace(Monty=Monty, MontyCrashedError=Monty.MontyCrashedError),
        )
        for value in (message, [object(), message]):
            patch.setattr(Monty, "value", value)
            assert blames_the_code(MontyPool().grade(CALLS, LIMITS))


@pytest.mark.parametrize("kind", [ValueError, Monty.MontyCrashedError])
def test_faults_of_monty(kind, monkeypatch):
    monty = types.SimpleNamespace(Monty=Monty, MontyCrashedError=Monty.MontyCrashedError)
    monkeypatch.setitem(sys.modules, "pydantic_monty", monty)
    monkeypatch.setattr(Monty, "fault", kind("\ud800" * 5_000))
    assert is_printable(MontyPool().grade(CALLS, LIMITS).detail)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message(data):
    forger = Forger()
    forger.payload = HEADER.pack(len(data)) + data
    with forger:
        grade = grade_calls(forger, CALLS, LIMITS)
    assert grade.passed_share == 0.0 and is_printable(grade.detail)


def test_bytes_that_are_no_text_are_not_quoted_in_full():
    forger = Forger()
    data = b"s" + HEADER.pack(50_000) + b"\xff" * 50_000
    forger.payload = HEADER.pack(len(data)) + data
    with forger:
        assert blames_the_code(grade_calls(forger, CALLS, LIMITS))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["locked", "seccomp", "landlock", "namespaces", "error"]), inner, max_size=5
        )
    ),
    max_leaves=9,
)


@given(json_values.map(json.dumps).map(str.encode) | st.binary(max_size=20) | st.just(b"[" * 60_000))
def test_greetings_of_fork_servers(greeting):
    """A fork server that does not say what its walls are did not start."""
    zygote = Zygote.__new__(Zygote)
    zygote._control, theirs = socket.socketpair()
    zygote._finalizer = lambda: None
    with theirs, zygote._control:
        theirs.sendall(greeting)
        theirs.shutdown(socket.SHUT_WR)
        try:
            walls = zygote._greet()
        except SandboxError:
            return
        assert type(walls.seccomp) is bool and isinstance(walls.landlock, int) and str(walls)
