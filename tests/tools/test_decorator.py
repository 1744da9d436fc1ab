"""Options of a tool: what may be said, and what is refused before anything is sampled."""

import functools

import pytest

from covey.tools import ToolError, tool
from covey.tools.decorator import ToolOptions
from covey.tools.schema import InvalidArguments, fitted_arguments, schema_of
from covey.tools.tool_contract import Tool, by_name
from tests.tools.chats import adder, named


async def waits(a: int) -> str:
    """Waits.

    Args:
        a: A number.
    """
    return str(a)


def test_the_function_stays_plain():
    add = adder()
    assert tool(where="thread", timeout=1)(add) is add and add(1, 2) == "3"
    assert tool(add) is add and Tool.of(add).options == ToolOptions()


@pytest.mark.parametrize(
    "given,word",
    [
        ({"tiemout": 3}, "tiemout"),
        ({"where": "moon"}, "moon"),
        ({"on_error": "ignore"}, "ignore"),
        ({"where": "thread", "timeout": 0}, "timeout=0"),
        ({"where": "thread", "timeout": float("nan")}, "timeout=nan"),
        ({"timeout": 3}, "inline"),
        ({"max_result": 0}, "max_result=0"),
        ({"max_result": 2.5}, "max_result=2.5"),
        ({"ends": "yes"}, "ends='yes'"),
    ],
)
def test_a_wrong_option_is_refused_with_the_tools_name(given, word):
    with pytest.raises(ToolError, match="'add'") as e:
        tool(**given)(adder())
    assert word in str(e.value)


def test_a_coroutine_function_takes_a_deadline_and_no_place():
    assert tool(timeout=3)(waits) is waits
    with pytest.raises(ToolError, match="event loop"):
        tool(where="thread")(waits)


def test_a_partial_is_a_tool_with_a_schema():
    schema = {"parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    made = Tool.of(tool(name="three", schema=schema)(functools.partial(adder(), b=3)))
    assert made.name == "three" and made.schema["function"]["name"] == "three"


def test_the_schema_is_the_one_that_transformers_makes():
    """So that a prompt has the tokens that the tokenizer's own template gives it."""
    from transformers.utils import get_json_schema

    assert schema_of(adder(), ToolOptions()) == get_json_schema(adder())
    assert schema_of(adder(), ToolOptions(name="plus"))["function"]["name"] == "plus"


def nothing(a: int) -> str:
    return ""


def no_hint(a) -> str:
    """Does.

    Args:
        a: A number.
    """


def no_line(a: int) -> str:
    """Does."""


def positional(a: int, /) -> str:
    """Does.

    Args:
        a: A number.
    """


@pytest.mark.parametrize(
    "function,missing",
    [(nothing, "docstring"), (no_hint, "a"), (no_line, "'a'"), (positional, "position")],
)
def test_a_function_without_a_schema_is_named_with_what_is_missing(function, missing):
    with pytest.raises(ToolError, match=f"'{function.__name__}'") as e:
        Tool.of(function)
    assert missing in str(e.value)


@pytest.mark.parametrize("thing", ["add", 3, None])
def test_what_is_no_function_is_refused(thing):
    with pytest.raises(ToolError, match="function"):
        Tool.of(thing)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ToolError, match="'add'"):
        by_name([Tool.of(adder()), Tool.of(adder())])


def test_methods_are_not_replayed_and_not_sent_away():
    assert Tool.of(adder()).replays and not Tool.of(adder(), is_method=True).replays
    with pytest.raises(ToolError, match="process"):
        Tool.of(tool(where="process")(adder()), is_method=True)


# --- arguments ----------------------------------------------------------------------------------------------


def schema(**properties):
    return {
        "function": {"parameters": {"type": "object", "properties": properties, "required": list(properties)}}
    }


@pytest.mark.parametrize(
    "kind,given,expected",
    [
        ({"type": "integer"}, 3, 3),
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, 3.0, 3),
        ({"type": "number"}, 3, 3),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "string"}, "0042", "0042"),
        ({"type": "string"}, 75001, "75001"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, False, False),
        ({"type": "array", "items": {"type": "integer"}}, [1, "2"], [1, 2]),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        (
            {"type": "object", "properties": {"x": {"type": "integer"}}},
            {"x": "1", "y": None},
            {"x": 1, "y": None},
        ),
        ({"type": ["integer", "string"]}, "7", "7"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", "7"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"type": "integer", "nullable": True}, None, None),
        ({"type": "string", "enum": ["a", "b"]}, "a", "a"),
        ({}, {"anything": [1]}, {"anything": [1]}),
    ],
)
def test_a_value_is_taken_as_its_schema_says(kind, given, expected):
    fitted = fitted_arguments({"x": given}, schema(x=kind))
    assert fitted == {"x": expected} and type(fitted["x"]) is type(expected)


@pytest.mark.parametrize(
    "kind,given",
    [
        ({"type": "integer"}, "x"),
        ({"type": "integer"}, 3.5),
        ({"type": "integer"}, True),
        ({"type": "integer"}, None),
        ({"type": "number"}, "[1]"),
        ({"type": "string"}, True),
        ({"type": "string"}, ["a"]),
        ({"type": "boolean"}, 1),
        ({"type": "array", "items": {"type": "integer"}}, ["x"]),
        ({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, {}),
        ({"type": "string", "enum": ["a", "b"]}, "c"),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_its_argument(kind, given):
    with pytest.raises(InvalidArguments, match=r"argument 'x' is .*expected"):
        fitted_arguments({"x": given}, schema(x=kind))


def test_missing_and_unknown_arguments_are_told():
    with pytest.raises(InvalidArguments, match="'b' is missing"):
        fitted_arguments({"a": 3}, Tool.of(adder()).schema)
    with pytest.raises(InvalidArguments, match="no argument 'c'; arguments are 'a', 'b'"):
        fitted_arguments({"a": 3, "b": 4, "c": 5}, Tool.of(adder()).schema)
    assert fitted_arguments({}, Tool.of(named("f", lambda: "")).schema) == {}
