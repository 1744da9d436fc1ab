"""Where the walls are missing, function calls may go to pydantic-monty; what it cannot run is nobody's fault."""

import importlib.util

import pytest

from covey.errors import SandboxError
from covey.rewards.sandbox.grade import AssertsJob, Call, CallsJob, StdioJob
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox

is_installed = importlib.util.find_spec("pydantic_monty") is not None


@pytest.fixture
def weak():
    """A machine without walls."""
    with Sandbox(walls=(), otherwise="monty", limits=Limits(cpu_seconds=1)) as sandbox:
        yield sandbox


def job(code, *calls):
    return CallsJob(code, tuple(Call("f", args, value) for args, value in calls))


@pytest.mark.skipif(is_installed, reason="pydantic-monty is there")
def test_without_the_package_it_says_what_to_install(weak):
    with pytest.raises(SandboxError, match="needs the package pydantic-monty"):
        weak.grade(job("def f(x): return x", ((1,), 1)))


def test_it_is_not_used_where_the_walls_stand():
    with Sandbox(otherwise="monty") as sandbox:
        grade = sandbox.grade(job("import heapq\ndef f(x): return heapq.nsmallest(1, x)", (([2, 1],), [1])))
        assert grade.status == "ok"
    with pytest.raises(ValueError, match="'refuse' or 'monty'"):
        Sandbox(otherwise="hope")


def test_programs_and_assertions_are_refused(weak):
    for refused in (StdioJob("print(1)", (("", "1"),)), AssertsJob("x = 1", ("assert True",))):
        with pytest.raises(SandboxError, match="this machine offers less"):
            weak.grade(refused)


@pytest.mark.skipif(not is_installed, reason="needs pydantic-monty")
@pytest.mark.parametrize(
    "code, status",
    [
        ("def f(x):\n    return [x * x, (1, 2)]", "ok"),
        ("def f(x):\n    return x", "wrong"),
        ("import heapq\ndef f(x):\n    return x", "unsupported"),
        ("def f(x):\n    yield x", "unsupported"),
        ("def f(x):\n    return open('/etc/passwd').read()", "unsupported"),
        ("def f(x):\n    while True:\n        pass", "timeout"),
        ("def f(x):\n    v = []\n    while True:\n        v.append('x' * 100000)", "memory"),
        ("def f(x):\n    v = []\n    for _ in range(10000):\n        v = [v]\n    return v", "wrong"),
        ("def f(x: return", "unsupported"),
    ],
)
def test_verdicts(weak, code, status):
    assert weak.grade(job(code, ((3,), [9, [1, 2]]))).status == status


@pytest.mark.skipif(not is_installed, reason="needs pydantic-monty")
def test_an_object_that_equals_all_does_not_pass(weak):
    assert (
        weak.grade(
            job(
                "class A:\n    def __eq__(self, o):\n        return True\ndef f(x):\n    return A()",
                ((3,), 9),
            )
        ).status
        != "ok"
    )
