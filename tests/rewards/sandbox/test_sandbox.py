"""What the sandbox says of ordinary code, and what it leaves behind."""

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from covey.errors import SandboxError
from covey.rewards.sandbox.grade import POLICY_FAULTS, AssertsJob, Call, CallsJob, StdioJob
from covey.rewards.sandbox.limits import Limits, Walls
from covey.rewards.sandbox.sandbox import Sandbox, probe
from covey.rewards.sandbox.session import CallFailed, Session
from covey.rewards.sandbox.trusted import trusted_child
from tests.clocks import PATIENCE

LIMITS = Limits(cpu_seconds=1, wall_seconds=PATIENCE)
"""Busy code ends by its processor time, however busy the machine is."""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(limits=LIMITS) as sandbox:
        yield sandbox


def calls(code, *expected, name="f"):
    return CallsJob(code, tuple(Call(name, args, value) for args, value in expected))


def test_calls(sandbox):
    grade = sandbox.grade(
        calls("def f(a, b=2):\n    return [a, b]", ((1,), [1, 2]), ((1, 3), [1, 3]), ((0,), [0, 0]))
    )
    assert [v.status for v in grade.verdicts] == ["ok", "ok", "wrong"]
    assert grade.status == "wrong" and grade.passed_share == pytest.approx(2 / 3)
    assert "f returned list(0, 2), expected list(0, 0)" in grade.detail
    assert 0 < grade.cpu_seconds < 1 and grade.peak_mb > 1


def test_calls_with_keywords_and_other_functions(sandbox):
    code = "def f(a, *, b): return a - b\ndef g(): return f(3, b=1)"
    job = CallsJob(code, (Call("f", (5,), 3, {"b": 2}), Call("g", (), 2), Call("h", (), 2)))
    assert [v.status for v in sandbox.grade(job).verdicts] == ["ok", "ok", "wrong"]


def test_what_was_reached_before_the_end_counts(sandbox):
    code = "def f(x):\n    while x == 3: pass\n    return x"
    grade = sandbox.grade(calls(code, ((1,), 1), ((2,), 2), ((3,), 3), ((4,), 4)))
    assert [v.status for v in grade.verdicts] == ["ok", "ok", "timeout", "timeout"]


def test_stop_early_leaves_the_rest_out(sandbox):
    code = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
    grade = sandbox.grade(calls(code, ((0,), 1), ((0,), 9), ((0,), 3)), stop_early=True)
    assert [v.detail for v in grade.verdicts][2] == "not run" and grade.verdicts[2].status == "wrong"


@pytest.mark.parametrize(
    "code, status",
    [
        ("def f(x): return 1/0", "crash"),
        ("raise ValueError('no')", "crash"),
        ("def f(x: return", "crash"),
        ("x = bytearray(1 << 40)", "memory"),
        ("def f(x): return bytearray(1 << 40)", "memory"),
        ("def f(x): return 'x' * (1 << 22)", "wrong"),
        ("def f(x):\n    while True: pass", "timeout"),
        ("def f(x):\n    import os\n    os._exit(3)", "crash"),
        ("import numpy", "crash"),
    ],
)
def test_statuses(sandbox, code, status):
    assert sandbox.grade(calls(code, ((1,), 1))).status == status


def test_stdio(sandbox):
    code = "import sys\nfor line in sys.stdin:\n    print(int(line) * 2)"
    job = StdioJob(code, (("1\n2\n", "2\n4"), ("", ""), ("5", "10  \n\n"), ("5", "10\n11"), ("x", "")))
    grade = sandbox.grade(job)
    assert [v.status for v in grade.verdicts] == ["ok", "ok", "ok", "wrong", "crash"]
    assert "ValueError" in grade.verdicts[4].detail


def test_a_program_that_hangs_on_every_input_is_not_run_on_all_of_them(sandbox):
    code = "if input() != 'fast':\n    while True: pass\nprint(1)"
    grade = sandbox.grade(StdioJob(code, (("fast", "1"), *[("slow", "1")] * 9)))
    assert [v.status for v in grade.verdicts] == ["ok", "timeout", "timeout", *["wrong"] * 7]
    assert grade.status == "timeout" and {v.detail for v in grade.verdicts[3:]} == {"not run"}


def test_a_program_that_sleeps_ends_by_the_clock():
    with Sandbox(limits=replace(LIMITS, wall_seconds=1.0)) as hurried:
        program = hurried.run(f"import time\ntime.sleep({2 * PATIENCE})")
    assert (program.status, program.detail) == ("timeout", "more than 1.0 s")


@pytest.mark.parametrize(
    "code",
    [
        "n = int(input())\nprint(n + 1)",
        "import sys\nprint(int(sys.stdin.read()) + 1)",
        "import sys\nprint(int(sys.stdin.buffer.readline()) + 1)",
        "print(int(open(0).read()) + 1)",
        "import sys\nsys.stdout.write(str(int(sys.stdin.readline()) + 1))",
        "import os\nos.write(1, str(int(os.read(0, 99)) + 1).encode())",
        "if __name__ == '__main__':\n    print(int(input()) + 1)",
        "import sys\nprint(int(input()) + 1)\nsys.exit()",
        "import sys\nprint(int(input()) + 1)\nsys.exit(0)",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(int(input())).x + 1)",
    ],
)
def test_ways_to_read_and_write(sandbox, code):
    assert sandbox.grade(StdioJob(code, (("41\n", "42"),))).status == "ok"


def test_long_input_and_a_program_that_does_not_read_it(sandbox):
    numbers = "\n".join(map(str, range(200_000)))
    job = StdioJob("import sys\nprint(sum(map(int, sys.stdin)))", ((numbers, str(sum(range(200_000)))),))
    assert sandbox.grade(job).status == "ok"
    assert sandbox.grade(StdioJob("print(1)", ((numbers, "1"),))).status == "ok"


def test_programs(sandbox):
    program = sandbox.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(2)")
    assert (program.status, program.stdout, program.stderr) == ("crash", "out\n", "err\n")
    assert program.detail == "SystemExit: 2"


def test_asserts_see_values_exceptions_and_changes(sandbox):
    code = """
def double(x): return x * 2
def sort(x): x.sort()
def fill(d): d['a'] = {1, 2}
def fail(): raise KeyError('k')
class Own(ValueError): pass
def own(): raise Own('mine')
"""
    tests = (
        "assert double(2) == 4 and double('a') == 'aa' and double([1]) == [1, 1] and double((1,)) == (1, 1)",
        "x = [3, 1, 2]\nsort(x)\nassert x == [1, 2, 3]",
        "d = {}\nfill(d)\nassert d == {'a': {1, 2}}",
        "try:\n    fail()\n    assert False\nexcept KeyError as e:\n    assert e.args == (\"'k'\",) or True",
        "try:\n    own()\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'mine'",
        "import math\nassert math.isclose(double(0.1), 0.2)",
        "assert double(3) == 5",
    )
    grade = sandbox.grade(AssertsJob(code, tests))
    assert [v.status for v in grade.verdicts] == ["ok"] * 6 + ["wrong"]


@pytest.mark.parametrize(
    "test, status",
    [
        ("assert f(lambda: 1) == 2", "unsupported"),
        ("assert f(f) == 2", "unsupported"),
        ("assert f(0).push(1) == 2", "unsupported"),
        ("assert f.name == 'f'", "unsupported"),
        ("assert f(0) == f(0)", "wrong"),
        ("assert f(0) == Stack()", "unsupported"),
        ("assert Stack() == f(0)", "unsupported"),
        ("assert f(0) == [1, {2: Stack()}]", "unsupported"),
        ("try:\n    f(0)\nexcept Stack:\n    pass\nassert g", "wrong"),
        ("try:\n    h(0)\nexcept Stack:\n    pass", "unsupported"),
        ("assert callable(nothing)", "wrong"),
        ("assert nothing is not None", "wrong"),
        ("assert nothing.method(1)", "unsupported"),
        ("assert f(0).append(1)", "wrong"),
        ("assert len(f(0)) == 1", "wrong"),
        ("assert not f(0)", "wrong"),
        ("for x in f(0): pass", "wrong"),
        ("assert nothing(1)", "wrong"),
        ("assert f(f(0)) == 1", "wrong"),
        ("assert f([f(0)]) == 1", "wrong"),
        ("assert (", "infrastructure"),
    ],
)
def test_what_a_proxy_cannot_carry_is_not_held_against_the_code(sandbox, test, status):
    code = (
        "class Stack:\n    def push(self, x): return 2\n    def __eq__(self, o): return True\ndef f(x): return Stack()\n"
        "def h(x): raise ValueError(x)"
    )
    assert sandbox.grade(AssertsJob(code, (test,))).status == status


HONEST = {
    "return range(x)": "assert list(f(3)) == [0, 1, 2] and f(3) == range(3) and len(f(3)) == 3",
    "yield from range(x)": "assert list(f(3)) == [0, 1, 2] and sum(f(4)) == 6 and list(f(5000)) == list(range(5000))",
    "n = 0\n    while True:\n        yield n\n        n += x": "import itertools\nassert list(itertools.islice(f(2), 1500))[-1] == 2998",
    "return map(str, range(x))": "assert list(f(2)) == ['0', '1']",
    "from fractions import Fraction\n    return Fraction(x, 2)": "from fractions import Fraction\nassert f(3) == Fraction(3, 2) == 1.5",
    "from decimal import Decimal\n    return Decimal(x)": "from decimal import Decimal\nassert f('1.5') == Decimal('1.5')",
    "import datetime\n    return datetime.date(*x)": "import datetime\nassert f((2024, 2, 29)) == datetime.date(2024, 2, 29)",
    "return x + __import__('datetime').timedelta(1)": "from datetime import *\nassert f(date(2024, 2, 28)) == date(2024, 2, 29)",
    "from collections import deque\n    return deque(x, 2)": "from collections import deque\nassert f([1, 2, 3]) == deque([2, 3]) and f([1]).pop() == 1",
    "from collections import namedtuple\n    return namedtuple('P', 'x y')(*x)": "assert f((1, 2)) == (1, 2) and f((1, 2)).y == 2",
    "from collections import Counter\n    return Counter(x)": "assert f('aab').most_common(1) == [('a', 2)] and f('a')['z'] == 0",
    "from collections import OrderedDict\n    return OrderedDict(x)": "assert f([(1, 2), (3, 4)]).popitem(last=False) == (1, 2)",
    "from collections import defaultdict\n    return defaultdict(list, x)": "assert f({1: [2]}) == {1: [2]} and f({})[5] == []",
    "return x.keys()": "assert list(f({1: 2})) == [1] and f({1: 2}) == {1} and set(f({})) == set()",
    "return {frozenset(x)}, b'a', 1j": "assert f([1, 1]) == ({frozenset({1})}, b'a', 1j)",
    "x.append(4)": "a = []\nf(x=a)\nassert a == [4]",
    "x['a'].append(4)": "inner = []\nwhole = {'a': inner, 'b': inner}\nf(whole)\nassert inner == [4]",
    "x[0].sort(); x.reverse()": "one, two = [2, 1], [5]\nboth = [one, two]\nf(both)\nassert one == [1, 2] and two == [5] and both[1] is one",
    "x[0].add(3)": "a = {1}\nf((a,))\nassert a == {1, 3}",
    "return x": "a = [1]\nassert f(a) is a",
    "raise IndexError('gone')": "try:\n    f(1)\n    assert False\nexcept IndexError as error:\n    assert str(error) == 'gone'",
    "yield 1\n    raise KeyError(x)": "it = f(2)\nassert next(it) == 1\ntry:\n    next(it)\n    assert False\nexcept KeyError:\n    pass",
}


@pytest.mark.parametrize("body", HONEST)
def test_honest_values_get_their_points(sandbox, body):
    grade = sandbox.grade(AssertsJob(f"def f(x):\n    {body}", (HONEST[body],)))
    assert grade.status == "ok", grade.detail
    changed = f"def f(x):\n    return 'wrong'\n    {body}"
    assert sandbox.grade(AssertsJob(changed, (HONEST[body],))).status in POLICY_FAULTS


TRICKS = [
    "assert all(map(lambda c: f(c[0]) == c[1], [(1, 1), (2, 4)]))",
    "assert not any(map(f, [1, 2]))",
    "for got, want in zip(map(f, [1, 2]), [1, 4]): assert got == want",
    "for got in iter(lambda: f(1), None): assert got == 1",
    "class Seq:\n    def __getitem__(self, i): return f(i)\nassert all(x == i * i for i, x in enumerate(Seq()))",
    "class Seq:\n    def __getattr__(self, name): return f(2)\nassert not hasattr(Seq(), 'x') or f(2) == 4",
    "assert [*filter(f, [1, 2])] == []",
    "async def g():\n    async for x in h(): assert False\nclass h:\n    def __aiter__(self): return self\n"
    "    async def __anext__(self): return f(1)\ntry:\n    g().send(None)\nexcept StopIteration:\n    pass",
]


@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit", "IndexError",
                                  "AttributeError", "BaseException", "NotImplementedError"])  # fmt: skip
def test_no_exception_ends_the_tests_early(sandbox, kind):
    grade = sandbox.grade(AssertsJob(f"def f(x): raise {kind}", tuple(TRICKS)))
    assert all(verdict.status in POLICY_FAULTS for verdict in grade.verdicts), grade.verdicts


def test_a_value_of_any_depth_is_right_or_wrong_and_never_left_out(sandbox):
    """Values go through the code twice: encode, then decode."""
    test = "assert decode(encode('ab')) == 'ab'"
    for depth in (1, 95, 97, 98, 99, 100, 101, 110, 500):
        code = f"def encode(x):\n    v = x\n    for _ in range({depth}): v = [v]\n    return v\n"
        lazy = sandbox.grade(AssertsJob(code + "def decode(x): return 0", (test,)))
        assert lazy.status == "wrong", (depth, lazy.detail)
        right = "def decode(x):\n    while isinstance(x, list): x = x[0]\n    return x"
        assert sandbox.grade(AssertsJob(code + right, (test,))).status == (
            "ok" if depth < 100 else "wrong"
        ), depth


def test_a_setup_that_fails_is_our_fault(sandbox):
    grade = sandbox.grade(AssertsJob("def f(): return 1", ("assert f() == 1",), setup="1 / 0"))
    assert grade.status == "infrastructure" and "ZeroDivisionError" in grade.detail
    for code in ("def f(): raise ValueError", "def f(): return object()", "x = 1"):
        job = AssertsJob(code, ("assert value == 1",), setup="value = f() + 0")
        assert sandbox.grade(job).status == "wrong", "what the setup asks of the code is the code's"


def test_setup_and_names(sandbox):
    job = AssertsJob(
        "def solve(): return 7", ("assert candidate() == LUCKY",), "LUCKY = 7", {"candidate": "solve"}
    )
    assert sandbox.grade(job).status == "ok"


def test_the_same_code_gets_the_same_verdict(sandbox):
    code = "import random\ndef f(): return [random.random(), {'a', 'b', 'c'}.pop(), id is None]"
    outputs = {sandbox.run("import random\nprint(random.random(), {'a', 'b', 'c'})").stdout for _ in range(3)}
    assert len(outputs) == 1
    assert sandbox.grade(calls(code, ((), 0))).detail == sandbox.grade(calls(code, ((), 0))).detail


def test_equal_jobs_run_once(sandbox, monkeypatch):
    ran = []
    monkeypatch.setattr(sandbox, "grade", lambda job, early: ran.append(job) or len(ran))
    jobs = [calls("a", ((1,), 1)), calls("b", ((1,), 1)), calls("a", ((1,), 1)), calls("a", ((1,), 2))]
    grades = sandbox.grade_all(jobs)
    assert len(ran) == 3 and grades[0] == grades[2] != grades[3]


def test_jobs_side_by_side(sandbox):
    jobs = [calls(f"def f(x): return x + {i}", ((1,), 1 + i)) for i in range(40)]
    jobs += [StdioJob(f"print({i})", (("", str(i)),)) for i in range(40)]
    jobs += [AssertsJob(f"def f(): return {i}", (f"assert f() == {i}",)) for i in range(40)]
    with Sandbox(limits=LIMITS, workers=8) as wide:
        assert {grade.status for grade in wide.grade_all(jobs)} == {"ok"}


def test_threads_share_a_sandbox(sandbox):
    grades = []
    job = calls("def f(x): return x", ((1,), 1))
    threads = [threading.Thread(target=lambda: grades.append(sandbox.grade(job).status)) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert grades == ["ok"] * 8


def test_started_from_a_thread_that_ends(tmp_path):
    """A zygote must not die with the thread that started it."""
    box = Sandbox(limits=LIMITS)
    thread = threading.Thread(target=box.start)
    thread.start(), thread.join()
    time.sleep(0.1)
    assert box.grade(calls("def f(x): return x", ((1,), 1))).status == "ok"
    box.close()


def test_pickled_and_forked(sandbox):
    copy = pickle.loads(pickle.dumps(sandbox))
    assert copy.grade(calls("def f(x): return x", ((1,), 1))).status == "ok"
    copy.close()
    pid = os.fork()
    if pid == 0:
        ok = sandbox.grade(calls("def f(x): return x", ((1,), 1))).status == "ok"
        sandbox.close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sandbox.grade(calls("def f(x): return x", ((1,), 1))).status == "ok"


def test_a_killed_zygote_is_replaced():
    with Sandbox(limits=LIMITS) as box:
        job = calls("def f(x): return x", ((1,), 1))
        assert box.grade(job).status == "ok"
        for _ in range(2):
            box._zygotes["code"]._process.kill()
            assert box.grade(job).status == "ok"


def test_descriptors_and_processes_do_not_pile_up(sandbox):
    job = calls("def f(x): return x", ((1,), 1))
    sandbox.grade(job)
    gc.collect()
    before = open_files()
    for code in ("print(1)", "while True: print(1)", "import os\nos._exit(0)", "raise ValueError"):
        sandbox.run(code)
        sandbox.grade(AssertsJob(code, ("assert f(1)",)))
        sandbox.grade(calls(code, ((1,), 1)))
    assert not open_files() - before
    zygote = sandbox._zygotes["code"]._process.pid
    assert not [state for state in states_below(zygote) if state == "Z"]


def open_files():
    """What this process has open, each with its number."""
    links = Path("/proc/self/fd").iterdir()
    return {(link.name, os.readlink(link)) for link in links if link.is_symlink() and os.path.lexists(link)}


def states_below(pid):
    """States of all descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append((int(entry.name), fields[0]))
    found, todo = [], [pid]
    while todo:
        for child, state in parents.get(todo.pop(), []):
            found.append(state)
            todo.append(child)
    return found


GUARDIAN = """
import ctypes, os, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to this process
host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE)
host.stdout.readline()
time.sleep(0.3)
host.send_signal(signal.SIGKILL)
end = time.monotonic() + 200
while time.monotonic() < end:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("none left")
        sys.exit()
    time.sleep(0.02)
print("left behind", os.popen("ps -ef --forest").read())
"""

HOST = """
import sys
sys.path[:0] = PATHS
import threading
from covey.rewards.sandbox.grade import *
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from covey.rewards.sandbox.trusted import trusted_child
from covey.rewards.sandbox.session import Session
box = Sandbox(limits=Limits(cpu_seconds=100, wall_seconds=100), walls=WALLS, workers=4)
loop = "while True: pass"
jobs = [StdioJob(loop, (("", ""),)), AssertsJob("def f():\\n    while True: pass", ("assert f()",)),
        StdioJob("import time; time.sleep(1000)", (("", ""),))]
box.start()
threading.Thread(target=box.grade_all, args=(jobs,)).start()
session = Session(trusted_child, "def f():\\n    while True: pass")
threading.Thread(target=session.call, args=("f",), kwargs={"seconds": 100}).start()
print("ready", flush=True)
"""


@pytest.mark.parametrize(
    "walls", [("seccomp", "landlock", "namespaces"), ("seccomp",)], ids=["all", "seccomp"]
)
def test_nothing_outlives_a_killed_host(walls):
    host = HOST.replace("PATHS", repr(sys.path)).replace("WALLS", repr(walls))
    guardian = GUARDIAN.replace("HOST", repr(host))
    ran = subprocess.run(
        [sys.executable, "-c", guardian], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.stdout.strip() == "none left", ran.stdout + ran.stderr


def test_below_the_level_asked_for_nothing_runs():
    with (
        Sandbox(level="seccomp", walls=()) as box,
        pytest.raises(SandboxError, match="this machine offers less"),
    ):
        box.run("print(1)")
    with (
        Sandbox(level="full", walls=("seccomp",)) as box,
        pytest.raises(SandboxError, match=r"level 'full'.*no Landlock"),
    ):
        box.grade(calls("def f(x): return x", ((1,), 1)))
    with Sandbox(level="limits", walls=()) as box:
        assert box.run("print(1)").stdout == "1\n" and box.walls.level == "limits"
    with pytest.raises(ValueError, match="limits, seccomp, full"):
        Sandbox(level="none")


def test_a_wall_that_does_not_stand_is_noticed(monkeypatch):
    """The zygote promises a wall; the trial run does not believe it."""
    from covey.rewards.sandbox import zygote

    lying = property(lambda self: Walls(True, 7, ("pid", "net")), lambda self, walls: None)
    monkeypatch.setattr(zygote.Zygote, "walls", lying, raising=False)
    with Sandbox(walls=()) as box, pytest.raises(SandboxError, match="only these walls stood"):
        box.run("print(1)")


def test_probe_and_levels():
    assert probe().level in ("limits", "seccomp", "full")
    assert Walls().level == "limits" and Walls(True).level == "seccomp"
    assert Walls(True, 3, ("pid", "net")).level == "full" and not Walls(True).reaches("full")
    assert str(Walls(True, 0, ())) == "seccomp, no Landlock, no namespaces"


def test_preloaded_modules_are_there(tmp_path):
    (tmp_path / "helper_for_tests.py").write_text("VALUE = 5")
    with Sandbox(limits=LIMITS, preload=["helper_for_tests"], paths=[str(tmp_path)]) as box:
        assert box.run("import helper_for_tests\nprint(helper_for_tests.VALUE)").stdout == "5\n"
    with Sandbox(preload=["no_such_module"]) as box, pytest.raises(SandboxError, match="no_such_module"):
        box.start()


def test_sessions_keep_functions_loaded_and_survive_a_hang(sandbox):
    session = Session(
        sandbox.child,
        "count = 0\ndef f(x):\n    global count\n    count += 1\n    while x < 0: pass\n    return x + count",
    )
    assert session.call("f", 1, seconds=PATIENCE) == 2
    assert session.call("f", 1, seconds=PATIENCE) == 3
    with pytest.raises(CallFailed) as failed:
        session.call("f", -1, seconds=0.3)
    assert failed.value.verdict.status == "timeout"
    assert session.call("f", 1, seconds=PATIENCE) == 2  # a fresh process
    with pytest.raises(CallFailed, match="there is no 'g'"):
        session.call("g", seconds=PATIENCE)
    session.close()


def test_processor_time_of_earlier_calls_is_not_held_against_a_later_one(sandbox):
    code = "import time\ndef f(seconds):\n    end = time.process_time() + seconds\n    while time.process_time() < end: pass\n    return 1"
    session = Session(sandbox.child, code)
    assert [session.call("f", 0.4, seconds=PATIENCE) for _ in range(4)] == [
        1
    ] * 4  # the limit is 1 s per child
    with pytest.raises(CallFailed, match="processor time"):
        session.call("f", 3, seconds=PATIENCE)
    session.close()


def test_trusted_functions_can_be_killed_too():
    session = Session(
        trusted_child, "import time\ndef f(x):\n    time.sleep(x)\n    return {'slept': x}", trusted=True
    )
    assert session.call("f", 0.0, seconds=PATIENCE) == {"slept": 0.0}
    with pytest.raises(CallFailed, match="timeout"):
        session.call("f", 2 * PATIENCE, seconds=0.2)
    with pytest.raises(CallFailed, match=r"infrastructure.*could not be loaded.*no_such_module"):
        Session(trusted_child, "import no_such_module").call("f", seconds=PATIENCE)
    session.close()
