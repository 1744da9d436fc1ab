"""Nothing is left behind by a job, a completion or a fork, whatever the host's own state is; a dying fork server costs no honest sample."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from covey.errors import RewardError
from covey.rewards import Mixture, reward
from covey.rewards.sandbox.grade import AssertsJob, Call, CallsJob, StdioJob
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from covey.rewards.sandbox.trusted import trusted_child
from tests.clocks import PATIENCE, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="walls of Linux")

MAKERS = {
    "calls": lambda i: CallsJob(f"def f(x): return x * {i}", (Call("f", (2,), 2 * i),)),
    "asserts": lambda i: AssertsJob(f"def f(x): return x * {i}", (f"assert f(2) == {2 * i}",)),
    "stdio": lambda i: StdioJob(f"print({i} * int(input()))", (("2", str(2 * i)),)),
}


def inner_process(zygote):
    outer = zygote._process.pid
    children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    return int(children[0]) if children else outer


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("role", ["code", "tests"])
def test_a_dying_fork_server_costs_no_honest_sample(kind, role):
    with Sandbox(limits=Limits(wall_seconds=PATIENCE), workers=4) as sandbox:
        sandbox.start()

        def kill():
            zygote = sandbox._zygotes.get(role)
            if zygote is not None:
                with contextlib.suppress(OSError):  # it ends already
                    os.kill(inner_process(zygote), signal.SIGKILL)

        timers = [threading.Timer(seconds, kill) for seconds in (0.05, 0.3)]
        for timer in timers:
            timer.start()
        grades = sandbox.grade_all([MAKERS[kind](i) for i in range(40)])
        for timer in timers:
            timer.join()
        assert [grade.detail for grade in grades if grade.status != "ok"] == []


@pytest.mark.parametrize("where", ["process", "sandbox"])
def test_a_reward_outlives_its_fork_server(where):
    @reward(where=where, timeout=PATIENCE)
    def lengths(completions, **_):
        return [float(len(text)) for text in completions]

    mixture = Mixture(lengths)
    assert mixture(prompts=["p"], completions=["ab"]) == [2.0]
    if where == "process":
        with trusted_child() as child:
            os.kill(child.zygote._process.pid, signal.SIGKILL)
    assert mixture(prompts=["p"], completions=["abc"]) == [3.0]


@pytest.mark.parametrize("sample_timeout", [None, PATIENCE])
def test_a_completion_cannot_take_over_a_reward_in_the_sandbox(sample_timeout):
    @reward(where="sandbox", sample_timeout=sample_timeout)
    def calculated(completions, **_):
        scores = []
        for text in completions:
            try:
                scores.append(float(eval(text) == 4))
            except Exception:
                scores.append(0.0)
        return scores

    mixture = Mixture(calculated)
    takeover = "__import__('builtins').__dict__.__setitem__('eval', lambda c: 4)"
    assert mixture(prompts=["p"], completions=[takeover]) == [0.0]
    assert mixture(prompts=["p"] * 2, completions=["5", "2 + 2"]) == [0.0, 1.0]
    if sample_timeout is not None:  # then each sample has a process of its own
        assert mixture(prompts=["p"] * 3, completions=[takeover, "6", "4"]) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_flags_of_a_standard_stream_end_with_the_job(descriptor):
    read = f"import fcntl\ndef f(x): return fcntl.fcntl({descriptor}, 3)"
    write = f"import fcntl\ndef f(x): return fcntl.fcntl({descriptor}, 4, 0o6000)"
    with Sandbox(workers=1) as sandbox:
        seen = [
            sandbox.grade(CallsJob(code, (Call("f", (1,), ""),))).detail
            for code in (read, write, read + "\n")
        ]
    assert seen[0] == seen[2]


HOSTS = {
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "ignored": "for n in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGPROF, signal.SIGXCPU): signal.signal(n, signal.SIG_IGN)",
    "umask": "os.umask(0o777)",
    "closed": "for n in (0, 1, 2): os.close(n)",
    "closed input": "os.close(0)",
    "limits": "for n in ('CPU', 'FSIZE', 'CORE', 'STACK'):\n    r = getattr(resource, 'RLIMIT_' + n)\n"
    "    resource.setrlimit(r, ({'STACK': 8 << 20, 'CPU': 100}.get(n, 0),) * 2)",
}
HOST = """
import os, resource, signal, sys, time
report = os.dup(1)
{state}
from covey.rewards.sandbox.grade import *
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from covey.rewards.sandbox.limits import Limits
sandbox = Sandbox(limits=Limits(wall_seconds=200), workers=2)
jobs = [CallsJob("def f(x): return 2", (Call("f", (1,), 2),)), CallsJob("def f(x):\\n    while 1: pass", (Call("f", (1,), 2),)),
        AssertsJob("def f(x): __import__('os')._exit(3)", ("assert f(1) == 2",)), StdioJob("print(input())", (("a", "a"),)),
        CallsJob("import signal, os\\nold = signal.pthread_sigmask(signal.SIG_BLOCK, ())\\nmask = os.umask\\n"
                 "def f(x): return len(old), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL", (Call("f", (1,), [0, True]),))]
sandbox.start()
os.write(report, repr([g.status for g in sandbox.grade_all(jobs)]).encode())
"""


@pytest.mark.parametrize("state", HOSTS)
def test_the_hosts_own_state_changes_no_verdict(state):
    done = subprocess.run(
        [sys.executable, "-c", HOST.format(state=HOSTS[state])],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert eval(done.stdout) == ["ok", "timeout", "crash", "ok", "ok"], done.stderr


def test_too_few_descriptors_are_a_clear_error():
    code = """
import resource
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from covey.rewards.sandbox.grade import *
from covey.errors import SandboxError
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
try:
    Sandbox(workers=32).grade_all([StdioJob(f"print({i})", (("", str(i)),)) for i in range(64)])
except SandboxError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "ulimit -n" in done.stdout and "workers" in done.stdout, done.stderr[-2000:]


FORKED = """
import os, signal, sys, time
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from covey.rewards.sandbox.trusted import trusted_child
sandbox = Sandbox()
sandbox.start()
held = trusted_child()
if os.fork() == 0:
    time.sleep(3600)
    os._exit(0)
print(sandbox._zygotes["code"]._process.pid, held.zygote._process.pid, flush=True)
time.sleep(3600)
"""


def test_a_fork_of_the_trainer_keeps_no_fork_server_alive():
    host = subprocess.Popen(
        [sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        pids = [int(pid) for pid in host.stdout.readline().split()]
        host.kill()
        host.wait()
        assert eventually(lambda: not any(map(is_running, pids)))
    finally:
        os.killpg(host.pid, signal.SIGKILL)  # the fork


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "tests",
    [
        "[" * 100_000,
        "[1" + "0" * 5000 + "]",
        '[{"args": 5, "expected": 1}]',
        '[{"args": [1], "expected": 1, "kwargs": 5}]',
    ],
)
def test_tests_that_cannot_be_read_are_an_error_of_the_dataset(tests):
    from covey.rewards import CallTests, StdioTests

    code = "```python\ndef f(x): return 1\n```"
    for made in (CallTests(), StdioTests()):
        with pytest.raises(RewardError, match="row"):
            made([code, code], tests=[tests, tests], entry_point=["f", "f"])
