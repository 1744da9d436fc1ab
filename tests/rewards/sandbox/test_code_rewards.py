"""Rewards that run code: what a completion is worth, and what is not its fault."""

import json
import math
import pickle

import pytest

from covey.errors import RewardError
from covey.rewards import AssertTests, CallTests, Failure, Reward, StdioTests
from covey.rewards.sandbox.extract import extract_code
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from tests.clocks import PATIENCE


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(limits=Limits(cpu_seconds=1, wall_seconds=PATIENCE)) as sandbox:
        yield sandbox


def fence(code, language="python"):
    return f"Here it is:\n```{language}\n{code}\n```\nDone."


GOOD, HALF, BAD = (
    "def f(x):\n    return x * x",
    "def f(x):\n    return abs(x * 3)",
    "def f(x):\n    return None",
)
TESTS = [{"args": [3], "expected": 9}, {"args": [-2], "expected": 4}]


@pytest.mark.parametrize(
    "text, code",
    [
        ("<code>x = 1</code>", "x = 1"),
        ("<code>\nif x:\n    y\n</code>", "if x:\n    y"),
        (fence("x = 1"), "x = 1"),
        (fence("x = 1", "py"), "x = 1"),
        (fence("x = 1", ""), "x = 1"),
        (fence("x = 1", "bash"), None),
        (fence("a = 1") + fence("b = 2") + fence("ls", "sh"), "b = 2"),
        ("```python\nx = 1", None),
        (fence("x = 1") + "```python\ny", "x = 1"),
        ("<think>" + fence("x = 1"), None),
        (fence("x = 1") + "</think>" + fence("y = 2"), "y = 2"),
        ("<code>x</code><code>y</code>", None),
        ("x = 1", None),
        ("", None),
        (fence(""), None),
        (fence("x" * 100_000), None),
    ],
)
def test_where_code_is_found(text, code):
    assert extract_code(text) == code


def test_calls_pay_the_share_or_all(sandbox):
    completions = [fence(code) for code in (GOOD, HALF, BAD)] + ["no code"]
    columns = {"tests": [TESTS] * 4, "entry_point": ["f"] * 4}
    assert CallTests(sandbox=sandbox)(completions, **columns) == [1.0, 0.5, 0.0, 0.0]
    assert CallTests("all", sandbox)(completions, **columns) == [1.0, 0.0, 0.0, 0.0]
    columns["tests"] = [[{"args": [3], "expected": 9}, {"args": [-2], "expected": 5}]] * 4
    assert CallTests("share", sandbox)(completions, **columns) == [0.5, 0.5, 0.0, 0.0]
    assert CallTests("all", sandbox)(completions, **columns) == [0.0] * 4


def test_tests_as_json_text_with_names_and_keywords(sandbox):
    tests = json.dumps(
        [
            {"name": "f", "args": [3], "kwargs": {}, "expected": 9},
            {"name": "f", "args": [], "kwargs": {"x": 2}, "expected": 4},
        ]
    )
    assert CallTests(sandbox=sandbox)([fence(GOOD)], tests=[tests]) == [1.0]


def test_stdio(sandbox):
    program = fence("print(int(input()) * 2)")
    for tests in (
        [{"input": "2\n", "output": "4"}, {"input": "3", "output": "6\n"}],
        {"inputs": ["2", "3"], "outputs": ["4", "6"]},
        [{"stdin": "2", "stdout": "4"}],
        json.dumps([{"input": "2", "output": "4"}]),
    ):
        assert StdioTests(sandbox=sandbox)([program], tests=[tests]) == [1.0]
    assert StdioTests(sandbox=sandbox)(
        [program], tests=[[{"input": "2", "output": "4"}, {"input": "2", "output": "5"}]]
    ) == [0.5]


def test_asserts(sandbox):
    rewards = AssertTests(sandbox=sandbox)
    assert rewards([fence(GOOD)], tests=[["assert f(3) == 9", "assert f(1) == 2"]]) == [0.5]
    assert rewards([fence(GOOD)], tests=["assert f(3) == 9"], test_setup_code=["import math"]) == [1.0]
    check = "def check(candidate):\n    assert candidate(3) == 9"
    assert rewards([fence(GOOD), fence(BAD)], tests=[check] * 2, entry_point=["f"] * 2) == [1.0, 0.0]


def test_rows_without_tests_are_not_applicable(sandbox):
    for reward in (CallTests, StdioTests, AssertTests):
        assert reward(sandbox=sandbox)([fence(GOOD), "x"], tests=[None, None]) == [None, None]


def test_what_cannot_be_judged_is_a_failure_and_not_a_zero(sandbox):
    (score,) = AssertTests(sandbox=sandbox)([fence(GOOD)], tests=[["assert f(lambda: 1)"]])
    assert math.isnan(score) and isinstance(score, Failure) and "unsupported" in score.reason


def test_what_the_code_does_is_zero_and_counted(sandbox):
    seen = {}
    bodies = [
        "while True: pass",
        "x = bytearray(1 << 40)",
        "return 1 / 0",
        "import os; os._exit(0)",
        "return x * x",
    ]
    completions = [fence(f"def f(x):\n    {body}") for body in bodies] + ["none"]
    scores = CallTests(sandbox=sandbox)(
        completions, log_metric=seen.__setitem__, tests=[TESTS] * 6, entry_point=["f"] * 6
    )
    assert scores == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert seen["code/timeout_share"] == seen["code/memory_share"] == seen["code/no_code_share"] == 1 / 6
    assert (
        seen["code/crash_share"] == 2 / 6 and seen["code/ok_share"] == 1 / 6 and seen["code/wrong_share"] == 0
    )


def test_bad_tests_are_named(sandbox):
    for tests in ([], "no json", [3], [{"args": [1]}]):
        with pytest.raises(RewardError, match="call_tests"):
            CallTests(sandbox=sandbox)([fence(GOOD)], tests=[tests], entry_point=["f"])
    with pytest.raises(RewardError, match="names no function"):
        CallTests(sandbox=sandbox)([fence(GOOD)], tests=[TESTS])
    with pytest.raises(RewardError, match="stdio_tests"):
        StdioTests(sandbox=sandbox)([fence(GOOD)], tests=[[{"x": 1}]])
    with pytest.raises(RewardError, match="assert_tests"):
        AssertTests(sandbox=sandbox)([fence(GOOD)], tests=[[1]])
    with pytest.raises(ValueError, match="'share' pays"):
        CallTests("half")
    assert Reward(CallTests(), "r").missing_columns(["x"]) == ["tests"]


def test_nothing_starts_before_it_is_used_and_all_can_be_sent():
    for kind in (CallTests, StdioTests, AssertTests):
        reward = pickle.loads(pickle.dumps(kind(sandbox=Sandbox())))
        assert reward.sandbox._zygotes == {} and reward.__name__
        assert pickle.loads(pickle.dumps(kind())).sandbox is kind().sandbox


def test_chats_and_echoes(sandbox):
    chat = [{"role": "assistant", "content": fence(GOOD)}]
    columns = {"tests": [TESTS], "entry_point": ["f"]}
    assert CallTests(sandbox=sandbox)([chat], **columns) == [1.0]
    assert CallTests(sandbox=sandbox)([fence(GOOD)], prompts=[fence(GOOD)], **columns) == [0.0]
