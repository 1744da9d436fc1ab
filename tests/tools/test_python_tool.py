"""Python for a policy: names stay, what comes back is short, nothing gets out, nothing is left behind."""

import gc
from dataclasses import replace

import psutil
import pytest

from covey.errors import SandboxError, ToolError
from covey.tools.python_tool import GONE, Python, PythonInterpreter
from tests.clocks import PATIENCE, eventually


@pytest.fixture(scope="module")
def python():
    """The factory, without modules beyond the usual, and with patience: what hangs on purpose is given a second of its own."""
    made = Python(seconds=PATIENCE, memory_mb=128, preload=("ctypes", "threading", "signal"))
    yield made
    made.close()


@pytest.fixture
def interpreter(python):
    made = python()
    made.reset()
    yield made
    made.close()


def below():
    """Processes below this one, those that have ended left out. Of those that earlier tests have left, some may still end."""
    found = psutil.Process().children(recursive=True)
    return {p.pid for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE}


def is_gone(text):
    return "names are gone" in text


# --- a stateful interpreter


def test_names_stay_between_calls_and_go_with_the_episode(interpreter):
    assert interpreter.python("x = 20\ndef double(n): return 2 * n") == ""
    assert interpreter.python("double(x) + 2") == "42"

    interpreter.reset(prompt="another row")

    assert interpreter.python("x") == "line 1: NameError: name 'x' is not defined"


@pytest.mark.parametrize(
    "code, expected",
    [
        ("print('a'); print('b')\n'c'", "a\nb\n'c'"),
        ("None", ""),
        ("", ""),
        ("1 +", "line 1: SyntaxError: invalid syntax"),
        ("y = 3\ny / 0", "line 2: ZeroDivisionError: division by zero"),
        ("print('before')\nassert False, 'why'", "before\nline 2: AssertionError: why"),
        ("import json\njson.loads('{')", "line 2: JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("import sys\nprint('to err', file=sys.stderr)\nsys.exit(3)", "to err\nline 3: SystemExit: 3"),
        ("class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "line 3: E"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\nP(1)", "P(x=1)"),
        ("if True:\n    5", ""),
        ("'\\ud800'", "'\\ud800'"),
        ("print('\\ud800')", "\\ud800"),
        ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))).__name__", "'A'"),
    ],
)  # fmt: skip
def test_what_comes_back(interpreter, code, expected):
    assert interpreter.python(code) == expected


def test_an_error_loses_nothing(interpreter):
    interpreter.python("x = 1\nraise ValueError")

    assert interpreter.python("x") == "1"


def test_two_episodes_share_no_name(python, interpreter):
    other = python()
    other.python("x = 1; import math; math.pi = 3")

    assert "NameError" in interpreter.python("x")
    assert interpreter.python("import math; math.pi") == "3.141592653589793"
    other.close()


def test_the_same_calls_give_the_same_text(python):
    def episode():
        made = python()
        texts = [made.python("import random; random.random()"), made.python("hash('a'), {'x', 'y', 'z'}")]
        made.close()
        return texts

    assert episode() == episode()


@pytest.mark.parametrize("n", [10, 5_000, 100_000])
def test_a_long_output_loses_its_middle(interpreter, n):
    text = interpreter.python(f"print('a' + 'x' * {n} + 'b')")

    assert text.startswith("ax") and text.endswith("xb")
    if n > 4_000:
        assert len(text) < 4_100 and f"[... {n + 3 - 4_000} characters left out ...]" in text


@pytest.fixture(scope="module")
def algebra():
    """An interpreter with SymPy."""
    python = Python(seconds=30)
    made = python()
    assert made.python("from sympy import *; x, n = symbols('x n'); f = Function('f')") == ""
    yield made
    python.close()


@pytest.mark.parametrize(
    "code, expected",
    [
        ("solve(x**2 - 4, x)", "[-2, 2]"),
        ("integrate(sin(x) * x, x)", "-x*cos(x) + sin(x)"),
        ("integrate(exp(-x**2), (x, -oo, oo))", "sqrt(pi)"),
        ("limit(sin(x) / x, x, 0), series(exp(x), x, 0, 3)", "(1, 1 + x + x**2/2 + O(x**3))"),
        ("summation(n**2, (n, 1, 10)), factor(x**2 - 1)", "(385, (x - 1)*(x + 1))"),
        ("Matrix([[2, 0], [0, 3]]).eigenvals(), ask(Q.even(4))", "({2: 1, 3: 1}, True)"),
        ("dsolve(f(x).diff(x) - f(x), f(x))", "Eq(f(x), C1*exp(x))"),
        ("solveset(x**2 < 4, x, S.Reals), nsolve(cos(x) - x, x, 1)", "(Interval.open(-2, 2), 0.739085133215161)"),
        ("import this_is_no_module", "line 1: ModuleNotFoundError: No module named 'this_is_no_module'"),
    ],
)  # fmt: skip
def test_what_is_preloaded_works_whole_though_no_file_can_be_opened(algebra, code, expected):
    assert algebra.python(code) == expected


# --- a child that is killed says so, and the next call begins anew

KILLERS = {
    "endless loop": "while True: pass",
    "endless loop that catches all": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "sleep": "import time\ntime.sleep(3600)",
    "endless output": "while True: print('x' * 1000)",
    "os._exit": "import os\nos._exit(0)",
    "killed by itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "abort": "import os\nos.abort()",
    "segmentation fault": "import ctypes\nctypes.string_at(0)",
    "signals ignored": "import signal\nfor n in (1, 2, 14, 15, 24, 27): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    "a timer of its own": "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0.1)\nwhile True: pass",
    "the channel closed": "import os\nos.close(3)",
    "noise on the channel": "import os\nos.write(3, b'\\x00\\x00\\x00\\x04junk')",
    "an endless answer": "import os\nos.write(3, b'\\xff\\xff\\xff\\xff')",
}


HANGING = (
    "endless loop",
    "endless loop that catches all",
    "sleep",
    "endless output",
    "signals ignored",
    "an endless answer",
)
"""Those that end by their deadline."""


@pytest.mark.parametrize("name", KILLERS)
def test_a_killed_child_says_that_its_state_is_gone(python, interpreter, name, monkeypatch):
    interpreter.python("x = 1")
    with monkeypatch.context() as hurried:
        hurried.setattr(python, "seconds", 1.0 if name in HANGING else PATIENCE)
        text = interpreter.python(KILLERS[name])

    assert is_gone(text)
    assert interpreter.python("x") == "line 1: NameError: name 'x' is not defined"


def test_a_huge_allocation_is_an_error_or_an_end(interpreter):
    text = interpreter.python("a = bytearray(10**10)")
    assert text == "line 1: MemoryError" or is_gone(text)
    text = interpreter.python("a = []\nwhile True: a.append(bytearray(10**6))")
    assert "MemoryError" in text or is_gone(text)

    interpreter.reset()
    assert interpreter.python("1 + 1") == "2"


def test_the_whole_life_of_a_child_has_an_end():
    python = Python(seconds=PATIENCE, preload=())
    python.sandbox.limits = replace(python.sandbox.limits, cpu_seconds=1)  # else that of 20 calls
    made = python()
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n'done'"
    try:
        answers = [made.python(busy) for _ in range(5)]
    finally:
        python.close()

    assert answers[:2] == ["'done'", "'done'"] and any(
        "processor time" in text for text in answers if is_gone(text)
    )


# --- nothing gets out

ATTACKS = {
    "read a file": "open('/etc/passwd').read()",
    "list a folder": "import os\nos.listdir('/')",
    "write a file": "open('/tmp/covey-escape', 'w')",
    "fork bomb": "import os\nwhile True: os.fork()",
    "thread": "import threading\nthreading.Thread(target=print).start()",
    "shell": "import os\nif os.system('true') == 0: print('ESCAPED')\nraise OSError",
    "socket": "import socket\nsocket.socket()",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)",
    "kill everybody": "import os\nos.kill(-1, 9)",
    "raise the limits": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_fail_as_errors(interpreter, name):
    interpreter.python("kept = 5")
    text = interpreter.python(ATTACKS[name])

    assert "Error" in text and "ESCAPED" not in text, text
    assert interpreter.python("kept") == "5"


def test_an_interpreter_that_is_replaced_harms_nobody_else(python, interpreter):
    other = python()
    interpreter.python(
        "import sys\ng = sys._getframe(2).f_globals\ng['run'] = lambda code, limit: 'x' * 10**5"
    )
    assert len(interpreter.python("1")) <= 4_200
    interpreter.python("g['run'] = lambda code, limit: [1]")
    interpreter.reset()

    assert interpreter.python("1 + 1") == other.python("1 + 1") == "2"
    other.close()


# --- nothing is left behind


def test_a_child_begins_with_the_first_call_and_ends_with_close(python):
    python.sandbox.start()
    gc.collect()
    before = below()
    made = python()
    made.reset()
    assert not below() - before
    made.python("1")
    assert len(below() - before) == 1

    made.close()
    made.close()

    assert eventually(lambda: not below() - before)


@pytest.mark.parametrize("end", ["reset", "close", "kill", "forgotten"])
def test_no_child_is_left(python, end):
    python.sandbox.start()
    gc.collect()
    before = below()
    for _ in range(50 if end == "reset" else 5):
        made = python()
        made.python("x = 1")
        if end == "kill":
            assert is_gone(made.python("import os\nos._exit(1)"))
        elif end != "forgotten":
            getattr(made, end)()
        del made
    gc.collect()

    assert eventually(lambda: not below() - before)


def test_the_factory_leaves_no_process():
    before = below()
    python = Python(preload=())
    made = python()
    made.python("x = 1")
    python.close()

    assert eventually(lambda: not below() - before)
    assert is_gone(made.python("x"))  # its child went with the others
    assert "NameError" in made.python("x")
    python.close()


# --- wrong input


@pytest.mark.parametrize(
    "given", [{"seconds": 0}, {"memory_mb": -1}, {"seconds": "5"}, {"max_characters": True}]
)
def test_a_limit_is_a_number_above_0(given):
    with pytest.raises(ToolError, match=next(iter(given))):
        Python(**given)


def test_a_child_has_the_limits_that_were_asked_for():
    limits = Python(seconds=2.5, memory_mb=100, preload=()).sandbox.limits

    assert (limits.wall_seconds, limits.cpu_seconds, limits.memory_mb) == (2.5, 50, 100)


def test_too_little_memory_for_its_modules_is_said():
    python = Python(memory_mb=8, preload=())
    with pytest.raises(SandboxError, match="8 MiB"):
        python().python("1")
    python.close()


def test_code_that_is_no_text_is_taken_as_text(interpreter):
    assert interpreter.python(3) == "3"


def test_it_is_an_environment_as_trl_has_it(python):
    made = python()
    assert isinstance(made, PythonInterpreter) and made.reset(prompt=[], answer=3) is None
    assert GONE.format(why="a").startswith("The interpreter was stopped: a.")
