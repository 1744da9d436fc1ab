"""Every family, through its own template: found by round trip, called, answered, and what goes wrong is data."""

import dataclasses

import pytest

from covey.tools.formats.finding import FORMATS, format_named
from covey.tools.formats.harmony import HARMONY
from covey.tools.formats.llama import LLAMA
from covey.tools.formats.pythonic import PYTHONIC
from tests.tools.chats import encode, maker, play, results, roles
from tests.tools.families import FAMILIES

NAMES = pytest.mark.parametrize("name", FAMILIES)


def taking(log):
    def f(a: int, b: str) -> str:
        """Takes two.

        Args:
            a: A number.
            b: Text that may look like one.
        """
        log.append((a, b))
        return "R"

    return f


def episode(family, *turns, log=None, **kw):
    """An episode in which the policy says `turns`, the last of them in plain words."""
    seen = [] if log is None else log
    tok = family.tokenizer()
    made = maker([taking(seen)], tok=tok, ends=family.stops, **kw)
    said = [*((t, family.end) for t in turns), (family.content.format("done"), family.eos or family.end)]
    return tok, made, play(made, ["x"], lambda index, number: said[number]).first


def test_every_format_has_a_family():
    assert {f.format for f in FAMILIES.values()} == {one.name for one in FORMATS}


@NAMES
def test_it_is_found_and_called_and_answered(name):
    """W8 for every family: what stands between the turn and the next is the template's own, and nothing twice."""
    family, log = FAMILIES[name], []
    tok, made, c = episode(family, family.call, log=log)
    assert made.language.format.name == family.format
    assert log == [(3, "04")], "text that looks like a number stays text"
    assert roles(c) == ["assistant", "tool", "assistant"] and results(c) == ["R"]
    assert c.messages[0]["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": {"a": 3, "b": "04"}}}
    ]
    assert c.messages[0]["content"] == "" and c.messages[-1]["content"] == "done"
    assert tok.decode(c.ids[c.turns[0].stop : c.turns[0].end]) == family.answer
    assert c.ids[: c.turns[0].stop] == encode(tok, family.call + family.end), "what was sampled stays"


@NAMES
def test_a_comment_in_its_template_changes_nothing(name):
    family = dataclasses.replace(FAMILIES[name], template="{# mine #}" + FAMILIES[name].template)
    assert results(episode(family, family.call)[2]) == ["R"]


@NAMES
def test_a_call_that_cannot_be_read_is_told(name):
    family, log = FAMILIES[name], []
    _, _, c = episode(family, family.broken, log=log)
    assert log == [] and c.turns[0].calls[0].status in ("malformed", "invalid")
    assert "error" in results(c)[0] and c.finish == "stop"


@NAMES
def test_a_broken_call_does_not_take_its_neighbour(name):
    family, log = FAMILIES[name], []
    _, _, c = episode(family, family.pair or family.broken + family.between + family.call, log=log)
    assert [call.status for call in c.turns[0].calls][-1] == "ok" and log == [(3, "04")]
    assert len(c.turns[0].calls) == 2 and c.turns[0].calls[0].has_failed


@NAMES
def test_a_draft_in_thinking_is_not_run(name):
    family, log = FAMILIES[name], []
    opens, closes = family.thinking
    draft = family.call.replace("3", "9")
    _, _, c = episode(family, opens + "maybe " + draft + closes + family.call, log=log)
    if family.format != "harmony":  # there a draft with a header of its own would be a message
        assert log == [(3, "04")] and len(c.turns[0].calls) == 1
    else:
        assert log[-1] == (3, "04")
    assert "maybe" in c.messages[0]["reasoning_content"] and c.messages[0]["content"] == ""


@NAMES
@pytest.mark.parametrize("missing", [1, 4])
def test_a_call_that_a_limit_cut_is_not_run(name, missing):
    """Behind its last argument too."""
    family, log = FAMILIES[name], []
    tok = family.tokenizer()
    made = maker([taking(log)], tok=tok, ends=family.stops)
    limit = len(encode(tok, family.call)) - missing
    c = play(made, ["x"], lambda i, n: (family.call, family.end), limit=limit).first
    assert (
        log == [] and c.finish == "length" and roles(c) == ["assistant"] and "tool_calls" not in c.messages[0]
    )


@NAMES
def test_a_control_token_in_a_result_is_text(name):
    family = FAMILIES[name]
    tok = family.tokenizer()
    language = maker([taking([])], tok=tok, ends=family.stops).language
    ended_by = tok.convert_tokens_to_ids(family.end)
    plain = [
        i
        for i in language.answer(["f"], ["x"], ended_by, {}, True)
        if i in language.suffix.renderer.control_ids
    ]
    for token in family.special:
        ids = language.answer(["f"], [f"a{token}b"], ended_by, {}, True)
        assert [i for i in ids if i in language.suffix.renderer.control_ids] == plain, token


@NAMES
def test_plain_words_are_no_call(name):
    family = FAMILIES[name]
    one = format_named(family.format)
    for words in ("", "hello", '{"result": 5}', "[1, 2]", "f(a=3)", "I call f.", "{", "[f]"):
        parsed = one.parse(family.content.format(words), "", {})
        assert parsed.calls == () and parsed.content == words, words


HOSTILE = [
    "[" * 5000,
    "{" * 5000,
    '{"name":' * 2000,
    "f(" * 3000,
    "(" * 100_000,
    "\x00",
    "a" * 10_000,
    "'\\",
    '"' * 999,
    '<|"|>' * 501,
    "{a:" * 3000,
]


@NAMES
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_text_in_a_call_is_data(name, number):
    family = FAMILIES[name]
    one = format_named(family.format)
    for text in (
        family.call.replace("3", HOSTILE[number]),
        family.call.replace("04", HOSTILE[number]),
        HOSTILE[number],
    ):
        for call in one.parse(text, "", {}).calls:
            assert isinstance(call.name, str) and isinstance(call.arguments, dict)


# --- what single families have of their own -------------------------------------------------------------------


def shape(parsed):
    return [(c.name, dict(c.arguments), c.fault is None) for c in parsed.calls]


def test_harmony_in_both_orders_and_with_words_before():
    before = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    for call in (FAMILIES["harmony"].call, FAMILIES["harmony, channel first"].call):
        parsed = HARMONY.parse(before + call, "assistant", {})
        assert shape(parsed) == [("f", {"a": 3, "b": "04"}, True)] and parsed.content == "I look."
    assert shape(HARMONY.parse(" to=functions.g<|channel|>commentary json<|message|>", "", {})) == [
        ("g", {}, True)
    ]
    cut = HARMONY.cut_short(
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>so", ""
    )
    assert cut.content == "so" and cut.reasoning == "hm"
    assert HARMONY.cut_short("<|channel|>analysis<|message|>hm", "").content == ""


def test_llama_answers_in_json_are_answers():
    schemas = {"f": {}}
    for text in ('{"name": "Ada", "born": 1815}', '{"a": 1}', "{'name': 'f'}"):
        assert LLAMA.parse(text, "", schemas).calls == ()
    assert shape(LLAMA.parse('{"name": "f"}', "", schemas)) == [("f", {}, True)]
    assert shape(LLAMA.parse('<|python_tag|>{"name": "g", "parameters": {}}', "", schemas)) == [
        ("g", {}, True)
    ]
    assert shape(LLAMA.parse("<|python_tag|>print(1)", "", schemas)) == [("", {}, False)]


@pytest.mark.parametrize(
    "value", ["{1: 2, 'a': 3}", "{(1, 2): 3}", "{1, 2}", "b'a'", "1j", "0x" + "f" * 4000, "[{'k': {1: 2}}]"]
)
def test_pythonic_values_that_json_does_not_know_are_malformed(value):
    """Whoever reads the arguments, the journal and the record among them, may take them for JSON."""
    [call] = PYTHONIC.parse(f"[f(x={value})]", "", {}).calls
    assert call.fault is not None and not call.arguments


def test_pythonic_tuples_are_lists():
    [call] = PYTHONIC.parse("[f(x=(1, (2, None)), y={'k': True})]", "", {}).calls
    assert call.arguments == {"x": [1, [2, None]], "y": {"k": True}}


def test_pythonic_values_are_plain_and_nothing_is_run():
    text = '[f(a=[1, {"x": null}], b="a, (b", c=-1.5, d=true), g()]'
    assert shape(PYTHONIC.parse(text, "", {})) == [
        ("f", {"a": [1, {"x": None}], "b": "a, (b", "c": -1.5, "d": True}, True),
        ("g", {}, True),
    ]
    for text in (
        '[f(a=__import__("os").system("true"))]',
        "[f(a=b)]",
        "[f(**{'a': 1})]",
        "[f(1)]",
        "[f(a=1)(b=2)]",
    ):
        assert [c.fault is None for c in PYTHONIC.parse(text, "", {}).calls] == [False], text


def test_values_of_xml_keep_their_lines():
    from covey.tools.formats.xml_parameters import XML_PARAMETERS

    text = "<tool_call>\n<function=run>\n<parameter=code>\n\n  x = '</p>'\n\n</parameter>\n</function>\n</tool_call>"
    assert shape(XML_PARAMETERS.parse(text, "", {})) == [("run", {"code": "\n  x = '</p>'\n"}, True)]
    assert shape(XML_PARAMETERS.parse("so <function=f>\n</function>", "", {})) == [("f", {}, True)]


def test_gemma_takes_nested_values():
    from covey.tools.formats.gemma import GEMMA

    text = '<|tool_call>call:f{a:[1,{k:<|"|>x, }<|"|>}],b:true, c:word}<tool_call|>'
    assert shape(GEMMA.parse(text, "", {})) == [
        ("f", {"a": [1, {"k": "x, }"}], "b": True, "c": "word"}, True)
    ]
    text = "<start_function_call>call:f{a:<escape>x<escape>}<end_function_call>"
    assert shape(GEMMA.parse(text, "", {})) == [("f", {"a": "x"}, True)]


def test_the_tokenizers_own_response_template_is_the_last_resort():
    family, log = FAMILIES["hermes"], []
    odd = dataclasses.replace(
        family,
        template=family.template.replace("<tool_call>", "<call>").replace("</tool_call>", "</call>"),
        call=family.call.replace("tool_call>", "call>"),
    )
    tok = odd.tokenizer()
    tok.response_template = {
        "start_anchor": "<|im_start|>assistant\n",
        "defaults": {"role": "assistant"},
        "fields": {
            "content": {"content": "text", "close_pattern": r"<\|im_end\|>\s*"},
            "tool_calls": {
                "content": "json", "open": "<call>", "close_pattern": r"</call>\s*", "repeats": True,
                "transform": {"type": "function", "function": "{content}"},
            },
        },
    }  # fmt: skip
    try:
        _, made, c = episode(odd, odd.call, log=log)
        assert made.language.format.name == "response_template"
        assert log == [(3, "04")] and c.messages[-1]["content"] == "done"
        assert episode(odd, "<call>{a: 3}</call>")[2].messages[0]["content"], (
            "a turn that it cannot read is text"
        )
    finally:
        del tok.response_template
