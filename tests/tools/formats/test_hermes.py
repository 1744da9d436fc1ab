"""Hermes: JSON between markers; and what all formats share: thinking is cut first, a broken call is data."""

import pytest

from covey.tools.formats.hermes import HERMES
from covey.tools.formats.parsed import THINK, without_thinking
from tests.tools.chats import call


def parse(text, prefix=""):
    return HERMES.parse(text, prefix, {})


def shape(parsed):
    return [(c.name, dict(c.arguments), c.fault is None) for c in parsed.calls]


def test_w9_a_draft_in_thinking_and_a_broken_call_beside_a_good_one():
    text = (
        '<think>maybe <tool_call>{"name":"f","arguments":{"a":1}}</tool_call></think>\n'
        '<tool_call>\n{"name": "f", "arguments": {"a": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {a: 3}}\n</tool_call>'
    )
    parsed = parse(text)
    assert [c.fault is None for c in parsed.calls] == [True, False]
    assert shape(parsed)[0] == ("f", {"a": 2}, True)
    assert parsed.content == "" and parsed.reasoning.startswith("maybe <tool_call>")
    assert "JSON" in parsed.calls[1].fault and parsed.calls[1].text == '{"name": "f", "arguments": {a: 3}}'


def test_text_around_calls_is_the_content():
    parsed = parse("I look.\n" + call("f") + "\n" + call("g", '{"x": "y"}') + "\nnow")
    assert parsed.content.split() == ["I", "look.", "now"]
    assert shape(parsed) == [("f", {}, True), ("g", {"x": "y"}, True)]


def test_without_calls_and_thinking_the_text_is_as_it_was():
    assert parse("  hello \n").content == "  hello \n"


@pytest.mark.parametrize(
    "body,fault",
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[1]", "object"),
        ('{"arguments": {}}', "name"),
        ('{"name": 3}', "name"),
        ('{"name": "f", "arguments": [1]}', "arguments"),
        ('{"name": "f", "arguments": "x y"}', "JSON"),
        ('{"name": "f"} {"name": "g"}', "between"),
        ("[" * 100_000, ""),
        ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", ""),
    ],
)
def test_a_call_that_cannot_be_read_says_why(body, fault):
    parsed = parse(f"<tool_call>{body}</tool_call>" + call("g"))
    assert [c.fault is None for c in parsed.calls] == [False, True]
    assert fault in parsed.calls[0].fault


def test_arguments_may_be_text_or_missing():
    assert shape(parse(call("f", '"{\\"a\\": 1}"'))) == [("f", {"a": 1}, True)]
    assert shape(parse('<tool_call>{"name": "f"}</tool_call>')) == [("f", {}, True)]
    assert shape(parse(call("f", "null"))) == [("f", {}, True)]


def test_a_closing_marker_in_a_string_closes_nothing():
    assert shape(parse(call("f", '{"a": "</tool_call> x"}'))) == [("f", {"a": "</tool_call> x"}, True)]


def test_an_unclosed_call_is_broken_and_its_neighbour_is_not():
    parsed = parse('<tool_call>{"name": "f", "arguments": {}}\n' + call("g"))
    assert [(c.name, c.fault is None) for c in parsed.calls] == [("", False), ("g", True)]
    assert parse('<tool_call>{"name": "f", "arguments": {}}').calls[0].fault is not None


def test_a_turn_that_was_cut_has_no_calls():
    cut = HERMES.cut_short("<think>a</think>so " + call("f"), "")
    assert cut.calls == () and cut.reasoning == "a" and cut.content.startswith("so <tool_call>")


@pytest.mark.parametrize(
    "text,prefix,rest,thought",
    [
        ("<think>a</think>b", "", "b", "a"),
        ("a</think>b", "assistant\n<think>\n", "b", "a"),
        ("<think>a</think>b", "assistant\n<think>\n", "b", "a"),
        ("a</think>b", "", "b", "a"),
        ("a b", "<think>\n\n</think>\n\n", "a b", None),
        ("b<think>c", "", "b", "c"),
        ("c", "<think>", "", "c"),
        ("<think>a</think>b<think>c</think>d", "", "bd", "a\nc"),
        ("<think></think>b", "", "b", ""),
        ("<think>", "", "", ""),
        ("", "", "", None),
    ],
)
def test_thinking_is_cut(text, prefix, rest, thought):
    assert without_thinking(text, prefix, (THINK,)) == (rest, thought)
