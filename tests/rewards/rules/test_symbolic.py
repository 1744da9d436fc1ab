"""Answers that need computer algebra, compared in a process that can be killed."""

import threading

import psutil
import pytest

from covey.rewards import Failure, SameAnswer, math_reward_func
from covey.rewards.rules import symbolic
from covey.rewards.rules.workers import Workers, workers
from tests.clocks import eventually

TOWER = "\\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}"
"""math-verify issue 65: hangs in C code despite the time limits inside the process."""


def same(gold, answer, **options):
    return SameAnswer(**options)([f"so \\boxed{{{answer}}}"], target=[gold])[0]


@pytest.mark.parametrize(
    "gold, answer, verdict",
    [
        ("\\sqrt{2}", "\\sqrt 2", 1.0),
        ("\\{1,2\\}", "\\{2,1\\}", 1.0),
        ("(1,2)", "(2,1)", 0.0),
        ("x<1", "(-\\infty,1)", 1.0),
        ("(-\\infty,1)", "x<1", 1.0),
        ("5", "x=5", 1.0),
        ("5", "5\\text{ cm}", 1.0),
        ("5", "\\$5.00", 1.0),
        ("90", "90^\\circ", 1.0),
        ("3/2", "1\\frac12", 1.0),
        ("x^2+2x+1", "(x+1)^2", 1.0),
        ("x**2", "x^2", 1.0),
        ("3\\pm\\sqrt{2}", "3+\\sqrt{2}, 3-\\sqrt{2}", 1.0),
        ("2\\pi", "\\pi \\cdot 2", 1.0),
        ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1&3\\end{pmatrix}", 0.0),
        ("1/2^{99}", "1/2^{98}", 0.0),
        ("8", "2^3", 1.0),
        ("1/8", "2^{-3}", 1.0),
        ("512", "2^{3^2}", 1.0),
        ("\\text{}", "5", None),
        ("?!", "5", None),
        ("5", "?!", 0.0),
        ("5", "a" * 5000, 0.0),
    ],
)
def test_verdicts(gold, answer, verdict):
    assert same(gold, answer) == verdict


@pytest.mark.parametrize(
    "answer",
    [TOWER, "9^{9^{9^9}}", "10^{10^8}", "(10^7)!", "\\binom{10^9}{10^8}", "(" * 300 + "1" + ")" * 300],
    ids=["issue 65", "tower", "power", "factorial", "binomial", "brackets"],
)
def test_answers_that_hang_are_wrong_and_soon(answer):
    assert same("5", answer, seconds=0.5) == 0.0


def test_a_hanging_answer_holds_up_nobody_else():
    """Issue 65's input twice in a batch of 64: all other verdicts are right."""
    golds = [f"{n}\\sqrt{{2}}" for n in range(2, 66)]
    completions = [f"\\boxed{{\\sqrt{{{2 * n * n}}}}}" for n in range(2, 66)]
    expected = [1.0] * 64
    for place, wrong in ((7, TOWER), (40, TOWER + "+1"), (50, "\\sqrt{3}")):
        completions[place], expected[place] = f"\\boxed{{{wrong}}}", 0.0
    assert math_reward_func(completions, target=golds) == expected


def test_works_in_a_thread_and_leaves_the_callers_alarm_alone():
    import signal

    fired = []
    signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    scores = []
    thread = threading.Thread(target=lambda: scores.append(same("\\sqrt{8}", "2\\sqrt{2}")))
    thread.start(), thread.join()
    assert scores == [1.0] and eventually(lambda: fired) and fired == [1]


def test_what_was_compared_is_remembered(monkeypatch):
    assert symbolic.compare([("\\sqrt{2}", "\\sqrt 2")], 5.0) == ["same"]
    monkeypatch.setattr(Workers, "call", lambda *_: pytest.fail("asked again"))
    assert symbolic.compare([("\\sqrt{2}", "\\sqrt 2")] * 3, 5.0) == ["same"] * 3


def test_equal_pairs_are_compared_once(monkeypatch):
    asked = []
    monkeypatch.setattr(Workers, "call", lambda self, session, pair, seconds: asked.append(pair) or True)
    assert symbolic.compare([("a", "b"), ("a", "c"), ("a", "b")], 1.0) == ["same"] * 3
    assert sorted(asked) == [("a", "b"), ("a", "c")]
    symbolic._remembered.clear()


def test_a_worker_that_cannot_start_is_not_the_answers_fault(monkeypatch):
    broken = Workers(symbolic.MODULE, "compare", count=1)
    broken.sessions[0]._code = "import no_such_module"
    monkeypatch.setattr(symbolic, "workers", lambda *_: broken)
    score = same("\\sqrt{5}", "\\sqrt 5 + 0")
    assert isinstance(score, Failure) and "worker" in score.reason
    assert same("5", "5.0") == 1.0  # needs no worker


def test_a_killed_worker_is_replaced():
    assert same("\\sqrt{7}", "\\sqrt 7+0") == 1.0
    for session in workers(symbolic.MODULE, "compare").sessions:
        if session._child is not None:
            session._child.leash.send(b"k")
    assert same("\\sqrt{7}", "\\sqrt 7+0+0") == 1.0


def test_a_worker_that_is_not_let_run_makes_no_answer_wrong():
    """It is stopped for ten times the processor time that its answer gets, as on a machine that others use."""
    pool, pair = Workers(symbolic.MODULE, "compare", count=1), ("\\sqrt{2}", "\\sqrt 2")
    with pool.sessions[0]._new_child() as first:  # its fork server is the one of all such workers
        server = psutil.Process(first.zygote._process.pid)
    others = server.children()
    assert pool.call(pool.sessions[0], pair, 1.0) is True
    [worker] = set(server.children()) - set(others)
    worker.suspend()
    timer = threading.Timer(2.0, worker.resume)
    timer.start()
    assert pool.call(pool.sessions[0], pair, 0.2) is True
    pool.sessions[0].close()
