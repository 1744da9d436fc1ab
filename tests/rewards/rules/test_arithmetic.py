"""The parser of arithmetic: exact, strict, and never long about it."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.rewards.rules.arithmetic import MAX_DEPTH, ExpressionError
from covey.rewards.rules.arithmetic import parse_expression as parse

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}

leaves = st.integers(0, 99).map(lambda n: (str(n), Fraction(n), [n]))


def joined(children):
    """Two expressions and an operator, fully in parentheses: text, value, numbers."""
    return st.tuples(children, st.sampled_from("+-*"), children).map(
        lambda t: (
            f"({t[0][0]}{t[1]}{t[2][0]})",
            OPERATIONS[t[1]](t[0][1], t[2][1]),
            t[0][2] + t[2][2],
        )
    )


@given(st.recursive(leaves, joined, max_leaves=12))
def test_value_and_numbers_are_those_of_the_tree_it_was_written_from(written):
    text, value, numbers = written
    expression = parse(text)

    assert expression.value() == value
    assert list(expression.numbers) == numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3*4", 14),
        ("2*3+4", 10),
        ("10-4-3", 3),  # to the left, not 10-(4-3)
        ("16/4/2", 2),
        ("8/(3-8/3)", 24),  # floats give 23.999999999999989
        ("-1+8*2", 15),
        ("8*2+-1", 15),
        ("2*(x-1)", 8),
        (" ( 8 *\t2 ) - 1 ", 15),
    ],
)
def test_precedence_and_exactness(text, value):
    assert parse(text).value({"x": 5}) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "()",
        "1+",
        "+1",
        "1 2",
        "8(2)",
        "2**3",
        "6//2",
        "1.5",
        "01",
        "1e1",
        "(1",
        "1)",
        "1\n+2",
        "８+1",
        "1²",
        "1,2",
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(ExpressionError):
        parse(text).value()


def test_an_operator_that_is_not_allowed_is_refused():
    with pytest.raises(ExpressionError, match="'/' is not allowed"):
        parse("4/2", operators="+-*")


def test_division_by_zero_and_unknown_names_have_no_value():
    with pytest.raises(ExpressionError, match="division by zero"):
        parse("1/(2-2)").value()
    with pytest.raises(ExpressionError, match="unknown name 'y'"):
        parse("x+y").value({"x": 1})


def test_depth_is_limited_before_python_is():
    nested = "(" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1)

    assert parse(nested).value() == 1
    with pytest.raises(ExpressionError, match="nested deeper"):
        parse(f"({nested})")
    with pytest.raises(ExpressionError, match="expected an operand, found '-'"):
        parse("-" * 500 + "1")  # one sign per operand


def test_long_text_is_refused():
    with pytest.raises(ExpressionError, match="longer than"):
        parse("1+" * 256 + "1")  # 513 characters
    assert parse("1+" * 255 + "11").value() == 266
