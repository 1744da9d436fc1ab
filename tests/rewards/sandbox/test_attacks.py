"""No attack gets out, stays, or is judged better than it is, whatever walls the machine offers beside seccomp."""

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import covey
from covey.rewards.sandbox.grade import AssertsJob, Call, CallsJob, StdioJob
from covey.rewards.sandbox.limits import ALL_WALLS, Limits
from covey.rewards.sandbox.sandbox import Sandbox
from tests.clocks import PATIENCE

HERE = Path(__file__).parent
ATTACKS = runpy.run_path(str(HERE / "attacks.py"))
ESCAPES, RESOURCES, VERDICTS = ATTACKS["ESCAPES"], ATTACKS["RESOURCES"], ATTACKS["VERDICTS"]
HONEST, TESTS = ATTACKS["HONEST"], ATTACKS["TESTS"]
TOOLS = (
    "ctypes",
    "mmap",
    "fcntl",
    "resource",
    "subprocess",
    "multiprocessing",
    "multiprocessing.popen_fork",
    "socket",
    "threading",
)
LIMITS = Limits(cpu_seconds=1, wall_seconds=PATIENCE)
IDLE = ("sleep", "wait for input", "stop itself")
"""Attacks that end by the clock, since they use no processor time."""
SETUPS = {"all walls": ALL_WALLS, "seccomp only": ("seccomp",)}


@pytest.fixture(scope="module", params=SETUPS)
def sandbox(request):
    """Everything that attacks need is preloaded, so that they fail at a wall and not at an import."""
    with Sandbox(limits=LIMITS, preload=TOOLS, walls=SETUPS[request.param]) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def world():
    """What attacks look for: a readable secret, a listening port, an abstract socket, the number of this process."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    secret = folder / "secret.txt"
    secret.write_text("secret")
    tcp = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0covey-test-" + str(os.getpid()))
    abstract.listen()
    yield {
        "SECRET": str(secret),
        "PORT": str(tcp.getsockname()[1]),
        "ABSTRACT": "covey-test-" + str(os.getpid()),
        "HOST_PID": str(os.getpid()),
    }
    tcp.close()
    abstract.close()
    shutil.rmtree(folder)


@contextmanager
def hurried(sandbox, name):
    """The sandbox with a second on the clock for an attack that uses it up, and with patience for all others."""
    sandbox.limits = replace(LIMITS, wall_seconds=1.2 if name in IDLE else PATIENCE)
    yield sandbox
    sandbox.limits = LIMITS


def filled(program, world):
    for name, value in world.items():
        program = program.replace(name, value)
    return program.replace("CAN_TELL", "True")


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes(name, sandbox, world):
    program = sandbox.run(filled(ESCAPES[name], world))
    assert "ESCAPED" not in program.stdout and program.status != "infrastructure"
    assert "ModuleNotFoundError" not in program.detail, "it must fail at a wall"
    assert sandbox.run("print(1)").stdout == "1\n"


NEEDS_A_WALL = ("read a file", "list a folder", "TCP to a port", "fork", "thread", "memfd", "kill the host")


@pytest.mark.parametrize("name", NEEDS_A_WALL)
def test_escapes_work_without_walls(name, world):
    """The control: the attacks are real ones."""
    code = filled(ESCAPES[name], world)
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "ESCAPED" in ran.stdout


@pytest.fixture(scope="module")
def one_sandbox():
    with Sandbox(limits=LIMITS, preload=TOOLS) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", RESOURCES)
def test_resources(name, one_sandbox):
    """Limits do not depend on the walls."""
    program, statuses = RESOURCES[name]
    with hurried(one_sandbox, name) as sandbox:
        result = sandbox.run(program)
    assert result.status in statuses, result
    assert len(result.stdout) <= 300_000 and len(result.stderr) <= 300_000
    assert sandbox.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts_by_asserts(name, sandbox):
    with hurried(sandbox, name):
        grade = sandbox.grade(AssertsJob(VERDICTS[name], TESTS))
    assert grade.status in ("wrong", "crash", "timeout", "memory", "output"), grade
    assert grade.passed_share <= 0.5, grade  # f(2) is an int for many; no value of theirs is right


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts_by_calls(name, sandbox):
    job = CallsJob(VERDICTS[name], tuple(Call("f", (x,), x * x) for x in (3, -2, 7, 10)))
    with hurried(sandbox, name):
        grade = sandbox.grade(job)
    assert grade.passed_share == 0.0 and grade.status in ("wrong", "crash", "timeout", "memory", "output"), (
        grade
    )


@pytest.mark.parametrize("name", ATTACKS["FORGED"])
def test_verdicts_by_programs(name, sandbox):
    grade = sandbox.grade(StdioJob(VERDICTS[name], (("", "1"),)))
    assert grade.passed_share == 0.0 and grade.status == "crash", grade


@pytest.mark.parametrize("name", ["search the frames for tests", "search the heap for tests"])
def test_searches_find_what_is_there(name, sandbox):
    """The control: with the tests in its own process, the same search passes them."""
    leaked = f"leak = ['{TESTS[0]}']\n{VERDICTS[name]}"
    assert sandbox.grade(AssertsJob(leaked, TESTS)).status == "ok"


def test_honest_code_passes(sandbox):
    assert sandbox.grade(AssertsJob(HONEST, TESTS)).status == "ok"
    assert sandbox.grade(CallsJob(HONEST, (Call("f", (3,), 9),))).status == "ok"
    assert sandbox.grade(StdioJob("print(int(input()) ** 2)", (("3\n", "9\n"),))).status == "ok"


def test_what_one_job_leaves_the_next_does_not_find(sandbox):
    leave = "import builtins, sys\nbuiltins.left = 1\nsys.left = 'MARKER_OF_JOB_ONE'\nprint(1)"
    find = """
import builtins, gc, sys
print(hasattr(builtins, 'left'), hasattr(sys, 'left'))
"""
    assert sandbox.run(leave).stdout == "1\n"
    assert sandbox.run(find).stdout == "False False\n"


def test_as_a_user_without_privileges(world, tmp_path):
    """The escapes again, from a host that is nobody: with user namespaces where the kernel allows them, and without."""
    python = python_for_nobody()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(Path(covey.__file__).parent, Path(folder, "covey"))
        shutil.copy(HERE / "attacks.py", folder)
        Path(folder, "world.json").write_text(json.dumps(world))
        Path(folder, "run.py").write_text(AS_NOBODY)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        ran = subprocess.run(
            [python, "-I", "run.py"],
            user=65534,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert ran.stdout.count("DONE") == 2 and "OUT" not in ran.stdout, ran.stdout + ran.stderr


AS_NOBODY = """
import json, os, runpy, sys
sys.path.insert(0, os.getcwd())
from covey.rewards.sandbox.sandbox import Limits, Sandbox
world = json.load(open("world.json")) | {"HOST_PID": str(os.getpid()), "CAN_TELL": "False"}
for walls in (("seccomp", "landlock", "namespaces"), ("seccomp",)):
    with Sandbox(limits=Limits(wall_seconds=1.2), preload=TOOLS, walls=walls) as sandbox:
        for name, program in runpy.run_path("attacks.py")["ESCAPES"].items():
            for word, value in world.items():
                program = program.replace(word, value)
            result = sandbox.run(program)
            if "ESCAPED" in result.stdout or result.status == "infrastructure":
                print("OUT", walls, name, result)
        print("DONE", sandbox.walls)
""".replace("TOOLS", repr(TOOLS))


def python_for_nobody():
    if os.getuid() != 0:
        pytest.skip("changes user, which only root can")
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        check = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(check, user=65534, cwd="/", capture_output=True, check=False).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("no Python here that nobody may run")
