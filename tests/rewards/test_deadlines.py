"""Rewards that sleep, loop, raise or kill their process: the run goes on, and nothing is left running."""

import asyncio
import gc
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from covey.errors import RewardError
from covey.rewards import Mixture, RewardBatch, reward
from tests.clocks import PATIENCE, eventually

AMPLE = 6.0
"""Seconds for one that answers at once, on a machine that others use, before one that hangs is killed."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A module that other processes can import."""
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "hostile_rewards.py").write_text(
        textwrap.dedent("""
        import os, time

        def by_text(completions, **_):
            return [one(c) for c in completions]

        def one(completion):
            if completion == "sleep":
                time.sleep(3_600)
            if completion == "loop":
                while True: pass
            if completion == "tower":
                9**9**9
            if completion == "raise":
                raise ValueError("no")
            if completion == "die":
                os._exit(3)
            if completion == "kill":
                os.kill(os.getpid(), 9)
            if completion == "exit":
                raise SystemExit(0)
            if completion == "garbage":
                return "garbage"
            return float(len(completion))

        def with_notes(completions, target, log_extra, log_metric, trainer_state=None):
            log_extra("upper", [c.upper() for c in completions])
            log_metric("pid", float(os.getpid()))
            return [float(t + getattr(trainer_state, "global_step", 0)) for t in target]

        COUNT = 0
        def counting(completions, **_):
            global COUNT
            COUNT += 1
            return [float(COUNT)] * len(completions)

        class Callable:
            def __init__(self, factor): self.factor = factor
            def __call__(self, completions, **_): return [self.factor * len(c) for c in completions]
    """)
    )
    sys.path.insert(0, str(folder))
    import hostile_rewards

    yield hostile_rewards
    sys.path.remove(str(folder))


def score(reward_, completions, **columns):
    given = RewardBatch(["p"] * len(completions), list(completions), columns=columns)
    return Mixture(reward_, max_failure_rate=1.0).score(given)


def values(table, name="by_text"):
    return [s.value for s in table.scores[name]]


def test_each_sample_has_its_own_deadline_in_a_process(hostile):
    r = reward(hostile.by_text, where="process", sample_timeout=AMPLE, on_error="missing")
    table = score(r, ["a", "sleep", "bb", "raise", "die", "kill", "garbage", "exit", "ccc", "d"])
    assert values(table) == [1.0, None, 2.0, None, None, None, None, None, 3.0, 1.0]
    errors = [s.error for s in table.scores["by_text"]]
    assert f"killed after {AMPLE} s" in errors[1] and "ValueError: no" in errors[3]
    assert "its process ended" in errors[4] and "signal 9" in errors[5] and "SystemExit" in errors[7]
    assert table.metrics["rewards/by_text/timeout_share"].value == pytest.approx(1 / 10)
    assert table.metrics["rewards/by_text/error_share"].value == pytest.approx(5 / 10)


def test_no_work_outlives_a_deadline_either(hostile):
    """Neither Python nor C code that holds the interpreter."""
    r = reward(hostile.by_text, where="process", sample_timeout=0.4, on_error="missing")
    table = score(r, ["loop", "tower"])
    assert ["killed after 0.4 s" in s.error for s in table.scores["by_text"]] == [True, True]
    assert table.metrics["rewards/by_text/timeout_share"].value == 1.0


def test_a_deadline_per_call_concerns_the_call(hostile):
    r = reward(hostile.by_text, where="process", timeout=AMPLE, on_error="zero")
    assert values(score(r, ["a", "sleep"])) == [0.0, 0.0]
    assert values(score(r, ["a", "bb"])) == [1.0, 2.0]


def test_an_exception_in_a_process_concerns_its_sample(hostile):
    r = reward(hostile.by_text, where="process", timeout=PATIENCE, on_error=-1.0)
    assert values(score(r, ["a", "raise", "bb", "die"])) == [1.0, -1.0, 2.0, -1.0]


def test_faults_in_a_process_stop_the_run_by_default(hostile):
    with pytest.raises(RewardError, match=r"raised CallTimeout: killed after 0\.3 s"):
        score(reward(hostile.by_text, where="process", timeout=0.3), ["loop"])
    with pytest.raises(RewardError, match="raised ValueError: no") as stopped:
        score(reward(hostile.by_text, where="process"), ["raise"])
    assert any("hostile_rewards.py" in note for note in stopped.value.__cause__.__notes__)


def test_a_process_gets_columns_and_gives_notes_back(hostile):
    given = RewardBatch(
        ["p", "q"],
        ["a", "b"],
        columns={"target": [1, 2]},
        trainer_state=SimpleNamespace(global_step=10, big=object()),
    )
    table = Mixture(reward(hostile.with_notes, where="process")).score(given)
    assert [table.total(i) for i in range(2)] == [11.0, 12.0]
    import os

    assert table.extras["upper"] == ["A", "B"] and table.metrics["pid"].value != os.getpid()


def test_the_process_stays_between_batches(hostile):
    mix = Mixture(reward(hostile.counting, where="process"))
    given = RewardBatch(["p"], ["a"])
    assert [mix.score(given).total(0) for _ in range(3)] == [1.0, 2.0, 3.0]


def test_the_process_ends_with_its_reward(hostile):
    mixture = Mixture(reward(hostile.with_notes, where="process"))
    table = mixture.score(RewardBatch(["p"], ["a"], columns={"target": [1.0]}))
    pid = int(table.metrics["pid"].value)
    assert psutil.pid_exists(pid)
    del mixture
    gc.collect()
    assert eventually(lambda: not psutil.pid_exists(pid))


def test_objects_lambdas_and_closures_go_to_a_process(hostile):
    factor = 3
    assert values(score(reward(hostile.Callable(2), where="process"), ["ab"]), "Callable") == [4]
    local = reward(lambda completions: [factor * len(c) for c in completions], name="local", where="process")
    assert values(score(local, ["ab"]), "local") == [6]
    generator = (i for i in ())
    with pytest.raises(RewardError, match="cannot be sent to a process"):
        score(reward(lambda completions: [float(next(generator))], name="held", where="process"), ["a"])


def test_a_thread_is_given_up_and_the_run_goes_on():
    release = threading.Event()

    def stuck(completions, **_):
        if "x" in completions:
            release.wait(PATIENCE)
        return [1.0] * len(completions)

    r = reward(stuck, where="thread", timeout=AMPLE, on_error="missing")
    assert values(score(r, ["x", "a"]), "stuck") == [None, None]
    assert values(score(r, ["a"]), "stuck") == [1.0]
    for _ in range(16):
        table = score(reward(stuck, where="thread", timeout=0.01, on_error="missing"), ["x"])
    assert "not called: 16 calls that were given up" in table.scores["stuck"][0].error
    release.set()


def test_a_coroutine_that_a_thread_comes_to_wait_for_after_it_was_given_up_is_cancelled():
    """As on a busy machine, where a judge's thread had not yet asked when its time was up."""
    given_up = threading.Event()

    def late(completions, **_):
        given_up.wait(PATIENCE)
        return asyncio.sleep(3_600)

    assert values(score(reward(late, where="thread", timeout=0.1, on_error="missing"), ["a"]), "late") == [
        None
    ]
    given_up.set()
    assert eventually(lambda: "covey-reward-late" not in {t.name for t in threading.enumerate()})


def test_an_exception_in_a_thread_is_the_rewards():
    def broken(completions, **_):
        raise ValueError("no")

    with pytest.raises(RewardError, match="raised ValueError: no"):
        score(reward(broken, where="thread", timeout=PATIENCE), ["a"])


def test_a_coroutine_is_cancelled_at_its_deadline():
    cancelled = []

    async def slow(completions, **_):
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return [1.0]

    assert values(score(reward(slow, timeout=0.2, on_error="zero"), ["a"]), "slow") == [0.0]
    assert cancelled == [True]


def test_a_coroutines_own_time_out_is_an_error_like_any_other():
    async def own(completions, **_):
        raise TimeoutError("the service did not answer")

    with pytest.raises(RewardError, match="raised TimeoutError: the service did not answer"):
        score(own, ["a"])


def in_the_sandbox(completions, prefix, **_):
    import re

    scores = []
    for completion, start in zip(completions, prefix, strict=True):
        if completion == "read":
            open("/etc/passwd").read()  # noqa: SIM115
        if completion == "sleep":
            __import__("time").sleep(3_600)
        scores.append(float(bool(re.match(start + "(a+)+$", completion))))
    return scores


def test_a_function_of_ones_own_in_the_sandbox():
    r = reward(in_the_sandbox, where="sandbox", sample_timeout=AMPLE, on_error="missing")
    table = score(r, ["xaa", "xb", "read", "sleep", "xa"], prefix=["x"] * 5)
    assert values(table, "in_the_sandbox") == [1.0, 0.0, None, None, 1.0]
    assert "PermissionError" in table.scores["in_the_sandbox"][2].error
    r = reward(in_the_sandbox, where="sandbox", timeout=PATIENCE)
    assert values(score(r, ["xa"], prefix=["x"]), "in_the_sandbox") == [1.0]


@reward(where="sandbox", sample_timeout=PATIENCE)
def decorated(completions, **_):
    return [float(len(c)) for c in completions]


def test_a_decorated_function_in_the_sandbox():
    assert values(score(decorated, ["ab"]), "decorated") == [2.0]


def test_what_cannot_stand_alone_is_refused():
    outside = 3

    def closure(completions, **_):
        return [outside] * len(completions)

    def imports_above(completions, **_):
        return [time.time()] * len(completions)

    for function, name in ((closure, "outside"), (imports_above, "time")):
        with pytest.raises(RewardError, match=f"uses {name} from outside"):
            score(reward(function, where="sandbox"), ["a"])
    with pytest.raises(RewardError, match="plain function"):
        score(reward(lambda completions: [1.0], where="sandbox", name="l"), ["a"])
    with pytest.raises(RewardError, match="holds what cannot cross"):
        score(reward(in_the_sandbox, where="sandbox"), ["a"], prefix=[object()])


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_faults_at_some_calls_leave_the_other_samples_what_they_would_have_been(hostile, rate):
    """200 samples in batches; every 1/rate-th brings one of the faults, and one hangs."""
    faults = ["raise", "garbage", "die"]
    every, size = int(1 / rate), 200
    completions = [faults[i // every % 3] if i % every == 0 else "a" * (1 + i % 7) for i in range(size)]
    completions[123] = "sleep"
    mix = Mixture(
        reward(hostile.by_text, where="process", sample_timeout=AMPLE, on_error="missing"),
        max_failure_rate=1.0,
    )
    for start in range(0, size, 50):
        part = completions[start : start + 50]
        table = mix.score(RewardBatch(["p"] * 50, part))
        expected = [None if c in (*faults, "sleep") else float(len(c)) for c in part]
        assert [table.total(i) for i in range(50)] == expected
