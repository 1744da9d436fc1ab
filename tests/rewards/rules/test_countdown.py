"""Countdown against cases with known verdicts, and against an independent search for small sets of numbers."""

import itertools
import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.rewards import Countdown
from covey.rewards.rules.arithmetic import ExpressionError, parse_expression
from covey.rewards.rules.countdown import reaches
from tests.clocks import own_seconds

CASES = json.loads((Path(__file__).parent / "countdown_cases.json").read_text())


def score(rule, completion, nums, target):
    return Countdown(rule)(completions=[completion], nums=[nums], target=[target])[0]


def answer(expression):
    return f"reasoning </think>\n<answer>{expression}</answer>"


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_known_verdicts(case):
    assert score(case["rule"], case["completion"], case["nums"], case["target"]) == float(case["expected"]), (
        case["why"]
    )


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_known_verdicts_as_chat(case):
    message = [{"role": "assistant", "content": case["completion"]}]
    assert score(case["rule"], message, case["nums"], case["target"]) == float(case["expected"])


@pytest.mark.parametrize(
    "expression, verdict",
    [
        ("8*2--1-2", 1.0),
        ("8*2-(-(-1))-1", 0.0),
        ("8*2---1", 0.0),
        ("8*2-(-1)-2", 1.0),
        ("-(1-8*2)", 1.0),
        ("8\u00a0*2-1", 0.0),
        ("8*2\n-1", 0.0),
        ("(8*2-1", 0.0),
        ("8*2-1)", 0.0),
        ("٨*٢-١", 0.0),
        ("8*2-1_0", 0.0),
        ("--15", 0.0),
    ],
)
def test_grammar(expression, verdict):
    assert score("subset", answer(expression), [8, 2, 1, 2], 15) == verdict


@pytest.mark.parametrize(
    "target, verdict",
    [
        (7.5, 1.0),
        ("7.5", 1.0),
        ("15/2", 1.0),
        (Fraction(15, 2), 1.0),
        (7, 0.0),
        (None, None),
        ("seven", None),
        (True, None),
        (float("nan"), None),
        ("1/0", None),
    ],
)
def test_targets(target, verdict):
    assert score("all", answer("15/2"), [15, 2], target) == verdict


@pytest.mark.parametrize("nums", [None, [], "42", [None], [1.5], 7])
def test_rows_without_numbers_are_not_applicable(nums):
    assert score("all", answer("4+2"), nums, 6) is None


def test_numbers_may_be_text_or_whole_floats():
    assert score("all", answer("4+2"), ["4", 2.0], 6) == 1.0


def test_rule_is_checked():
    with pytest.raises(ValueError, match="'subset' or 'all'"):
        Countdown(rule="some")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.data())
def test_any_way_to_write_a_true_expression_is_accepted(numbers, data):
    """A random tree over the numbers, written with needless brackets and spaces, reaches its own value."""
    space = st.sampled_from(["", " ", "\t"])

    def tree(parts):
        if len(parts) == 1:
            return str(parts[0]), Fraction(parts[0])
        cut = data.draw(st.integers(1, len(parts) - 1))
        (left, a), (right, b) = tree(parts[:cut]), tree(parts[cut:])
        operator = data.draw(st.sampled_from("+-*" if b == 0 else "+-*/"))
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[operator]
        return f"({left}{data.draw(space)}{operator}{data.draw(space)}{right})", value

    text, value = tree(numbers)
    assert reaches(text, numbers, value, "all") and reaches(text, numbers, value, "subset")
    assert not reaches(text, numbers, value + 1, "subset")
    assert not reaches(text, [*numbers, 51], value, "all")
    assert reaches(text, [*numbers, 51], value, "subset")


@given(st.text(alphabet="0123456789+-*/() \t", max_size=30))
def test_parser_agrees_with_python_where_it_accepts(text):
    try:
        value = parse_expression(text).value()
    except ExpressionError:
        return
    as_fractions = "".join(
        f"Fraction({''.join(run)})" if digit else "".join(run)
        for digit, run in itertools.groupby(text.strip(), str.isdigit)
    )
    assert value == eval(as_fractions, {"Fraction": Fraction})


@pytest.mark.parametrize("unit", ["(", "9", "-", "9+", "9*", "<answer>", "</think>", " ", "**", "9/9"])
def test_hostile_text_ends_at_once(unit):
    with own_seconds(1.0):
        for completion in (unit * 100_000, answer(unit * 100_000), answer(unit * 150)):
            score("subset", completion, [9] * 100, 9)
