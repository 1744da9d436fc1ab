"""Rows made from datasets of the usual shapes score full marks with their own right answers."""

import pytest

from covey.errors import DatasetError
from covey.rewards import AssertTests, Mixture, SameAnswer, check_rewards, reward
from covey.tasks.datasets import COLUMNS, as_rows

GSM8K = {
    "question": "Tom has 1,200 eggs and gets 30.",
    "answer": "1200 + 30 = <<1200+30=1230>>1,230\n#### 1,230",
}
MBPP = {
    "task_id": 2,
    "text": "Write a function to square a number.",
    "code": "def square(x):\n    return x * x",
    "test_list": ["assert square(2) == 4", "assert square(3) == 9"],
    "test_setup_code": "import math",
    "challenge_test_list": [],
}
MBPP_SANITIZED = {
    "prompt": "Square a number.",
    "code": MBPP["code"],
    "test_list": MBPP["test_list"],
    "test_imports": ["import math"],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def test_all_rows_have_the_same_columns_and_their_rewards_pay_for_their_solutions():
    rows = as_rows([GSM8K, MBPP, MBPP_SANITIZED, HUMANEVAL])
    assert all(tuple(row) == COLUMNS for row in rows)
    assert [row["task"] for row in rows] == ["gsm8k", "mbpp", "mbpp", "humaneval"]
    mix = Mixture(
        reward(SameAnswer("answer"), tasks="gsm8k"), reward(AssertTests(), tasks={"mbpp", "humaneval"})
    )
    report = check_rewards(mix, rows)
    assert report.exit_code == 0, str(report)
    assert report.rewards["same_answer"].gold_share == report.rewards["assert_tests"].gold_share == 1.0


def test_gsm8k():
    (row,) = as_rows([GSM8K])
    assert row["answer"] == "1230" and row["prompt"][0]["content"].startswith("Tom has")
    assert "<answer>" in row["prompt"][0]["content"]


def test_mbpp_shows_some_tests_and_holds_the_others_back():
    (row,) = as_rows([MBPP])
    text = row["prompt"][0]["content"]
    assert "square(2)" in text and "square(3)" not in text and row["tests"] == MBPP["test_list"]
    assert row["test_setup_code"] == as_rows([MBPP_SANITIZED])[0]["test_setup_code"] == "import math"
    assert "square(" not in as_rows([MBPP], num_shown=0)[0]["prompt"][0]["content"]


def test_humaneval():
    (row,) = as_rows([HUMANEVAL], instruction="Go.")
    assert row["entry_point"] == "double" and row["prompt"][0]["content"].endswith("Go.")
    assert row["tests"] == [HUMANEVAL["test"] + "\ncheck(candidate)"]


def test_other_columns_are_named():
    with pytest.raises(
        DatasetError, match=r"has the columns q; expected \{'humaneval': \['canonical_solution'"
    ):
        as_rows([{"q": 1}])
    with pytest.raises(DatasetError, match=r"expected \{'mbpp'"):
        as_rows([GSM8K], shape="mbpp")
