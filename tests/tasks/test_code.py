"""Code: described in words, verified by a parser and an evaluator of one-line programs."""

import itertools

import pytest

from covey.rewards.rules.arithmetic import ExpressionError
from covey.tasks.code import (
    LEVELS,
    NUM_TESTS,
    CodePuzzle,
    CodeStep,
    code_puzzles,
    code_reward,
    code_rows,
    parse_program,
    passes,
    render,
)
from tests.clocks import own_seconds

PUZZLES = code_puzzles(300)


@pytest.mark.parametrize("level", LEVELS)
def test_every_solution_passes_its_tests(level):
    puzzles = code_puzzles(200, level=level)
    fewest, most = LEVELS[level]

    scores = code_reward([f"<code>{p.solution}</code>" for p in puzzles], [p.row()["tests"] for p in puzzles])

    assert scores == [1.0] * len(puzzles)
    assert all(fewest <= len(p.steps) <= most for p in puzzles)
    assert all(len(set(p.inputs)) == NUM_TESTS for p in puzzles)


def test_a_corrupted_program_fails():
    for p in PUZZLES:
        tests = p.row()["tests"]
        assert not passes(f"{p.solution}+1", tests)
        assert not passes(p.solution.replace("f(x)", "g(x)"), tests)
        assert not passes(f"def f(x): return {tests[0][1]}", tests)  # knows one test by heart


def test_programs_of_other_puzzles_fail():
    """Two puzzles have different keys, so their functions differ somewhere; the tests should see most of it."""
    failed = [not passes(p.solution, q.row()["tests"]) for p, q in itertools.pairwise(PUZZLES)]

    assert all(failed)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("add", 3), ("multiply by", 2)], "(x+3)*2"),
        ([("multiply by", 2), ("add", 3)], "x*2+3"),
        ([("subtract", 3), ("subtract it from", 9)], "9-(x-3)"),
        ([("multiply by", "x"), ("subtract it from", 9), ("multiply by", 2)], "(9-x*x)*2"),
    ],
)
def test_programs_have_the_parentheses_they_need_and_no_more(steps, expected):
    assert render([CodeStep(*s) for s in steps]) == expected


def test_two_wordings_of_a_function_are_one_puzzle():
    twice = CodePuzzle((CodeStep("add", "x"),), (0,))
    double = CodePuzzle((CodeStep("multiply by", 2),), (1,))

    assert twice.key == double.key


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("def f(x): return x+1", True),
        ("def f(x):\n    return 1 + x", True),
        ("def f(x): return(x+1)", True),
        ("def f(x): return (x)+1", True),
        ("def f(x): return x+1\n", True),
        ("def f(x): return \nx+1", False),
        ("def f(x): return \u2003x+1", False),
        ("def f(x): return x+y", False),
        ("def f(x): returnx+1", False),
        ("def f(x, y): return x+1", False),
        ("def f(x): return x+1; import os", False),
        ("def f(x): return x+1\nprint(1)", False),
        ("lambda x: x+1", False),
        ("def f(x): return x+2/2", False),  # no division in the language
        ("def f(x): return __import__('os').getpid()", False),
        ("x = 1\ndef f(x): return x+1", False),
    ],
)
def test_only_the_little_language_is_understood(program, expected):
    assert passes(program, [[0, 1], [5, 6], [-2, -1]]) is expected


def test_long_numbers_are_refused():
    assert passes("def f(x): return x+111111111111", [[0, 111111111111]])
    with pytest.raises(ExpressionError, match="more than 12 digits"):
        parse_program("def f(x): return " + "1" * 13)


def test_attacks_are_not_paid_and_do_not_take_long(attacks):
    row, gold = PUZZLES[0].row(), PUZZLES[0].solution
    texts = attacks(row["prompt"][0]["content"], "code", gold)

    # Quadratic work on 100 kB would be 10^10 steps, minutes; all of them together take some milliseconds.
    with own_seconds(2):
        paid = [name for name, text in texts.items() if code_reward([text], [row["tests"]]) != [0.0]]

    assert not paid


def test_messages_are_read_like_text_and_other_rows_are_left_alone():
    row = code_rows(1)[0]
    said = [{"role": "assistant", "content": f"<code>{code_puzzles(1)[0].solution}</code>"}]

    assert code_reward([said, said], [row["tests"], None]) == [1.0, None]
