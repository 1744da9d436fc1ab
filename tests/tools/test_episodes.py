"""Maker and episodes: which tools a row has, what is refused before anything is sampled, who answers whom."""

import pytest

from covey.errors import ConfigError, DatasetError, ToolError
from covey.tools import Tags, tool
from tests.tools.chats import (
    HERMES,
    adder,
    call,
    encode,
    hermes,
    maker,
    named,
    play,
    results,
    roles,
    says,
    tokenizer,
)

TOK = hermes()
USER = [{"role": "user", "content": "x"}]


def shown(made, **row):
    return [s["function"]["name"] for s in made.reader_tools({"prompt": USER, **row}, 3) or []]


# --- which tools a row has ----------------------------------------------------------------------------------


def test_a_column_names_the_tools_of_its_row():
    f, g = named("f", lambda: "1"), named("g", lambda: "2")
    made = maker([f, g, adder()])
    assert shown(made) == shown(made, tools=None) == ["f", "g", "add"]
    assert shown(made, tools=[]) == shown(made, tools="[]") == []
    assert shown(made, tools=["add", "f"]) == ["f", "add"], "in the order in which they were given"
    assert shown(made, tools='["g"]') == shown(made, tools="g") == ["g"]
    assert shown(made, tools=[{"type": "function", "function": {"name": "g"}}]) == ["g"]
    played = play(made, [{"prompt": USER, "tools": ["f"]}], says(call("f") + call("g"), "ok"))
    assert results(played.first)[0] == "1" and "'f'" in results(played.first)[1].replace("\\", "")
    text = TOK.decode(played.groups[0].prompt.ids)
    assert '"f"' in text and '"g"' not in text


def test_an_unknown_tool_of_a_row_is_refused():
    with pytest.raises(DatasetError, match=r"Row 3 has 'h' in the column 'tools'.*'f'"):
        shown(maker([named("f", lambda: "")]), tools=["f", "h"])


def test_renamed_tools_are_called_by_their_new_name():
    made = maker([tool(name="plus")(adder())])
    assert shown(made) == ["plus"]
    assert results(play(made, ["x"], says(call("plus", '{"a": 1, "b": 2}'), "3")).first) == ["3"]


def test_a_name_shared_by_environments_of_different_rows_is_no_clash():
    class A:
        def reset(self, **row): ...

        def look(self) -> str:
            """Looks."""
            return "a"

    class B(A):
        def look(self) -> str:
            """Looks."""
            return "b"

    made = maker([], {"a": A, "b": B})
    rows = [{"prompt": USER, "environment": name} for name in "ab"]
    assert [results(c) for c in play(made, rows, says(call("look"), "ok")).completions] == [["a"], ["b"]]


# --- refused before anything is sampled ---------------------------------------------------------------------


def test_tools_need_chats():
    with pytest.raises(DatasetError, match=r"Row 4.*tools need a chat"):
        maker([adder()]).reader.read({"prompt": "sum 3 4"}, 4, (0,))


def test_a_template_that_shows_no_tools_is_refused():
    silent = tokenizer(HERMES.replace("{%- if tools %}", "{%- if false %}"))
    with pytest.raises(ToolError, match="template shows no tools"):
        maker([adder()], tok=silent)


def test_a_tokenizer_without_a_template_is_refused():
    with pytest.raises(ToolError, match="chat template"):
        maker([adder()], tok=tokenizer(None))


def test_a_template_whose_calls_no_format_reads_is_refused():
    odd = tokenizer(HERMES.replace("\n<tool_call>\n", "CALL ").replace("\n</tool_call>", ""))
    with pytest.raises(ToolError, match=r"No format reads.*CALL"):
        maker([adder()], tok=odd)


def test_a_format_may_be_said():
    odd = tokenizer(HERMES.replace("\n<tool_call>\n", "CALL ").replace("\n</tool_call>", ""))
    assert results(
        play(
            maker([adder()], tok=odd, tool_format="hermes"), ["x"], says(call("add", '{"a": 1, "b": 2}'), "3")
        ).first
    ) == ["3"]
    with pytest.raises(ToolError, match="'nonsense'; formats are hermes"):
        maker([adder()], tool_format="nonsense")
    with pytest.raises(ConfigError, match="tool_format is int"):
        maker([adder()], tool_format=3)


def test_a_comment_in_the_template_changes_nothing():
    commented = tokenizer("{# mine #}" + HERMES, markers=("<tool_call>", "</tool_call>"))
    assert roles(
        play(maker([adder()], tok=commented), ["x"], says(call("add", '{"a": 1, "b": 2}'), "3")).first
    ) == ["assistant", "tool", "assistant"]


def test_text_prompts_will_do_where_there_is_nothing_to_call():
    class Silent:
        def reset(self, **row):
            return "!"

    played = play(maker([], Silent, tok=tokenizer(None)), [{"prompt": "say"}], says("ok"))
    assert played.groups[0].prompt.content == "say!" and played.first.finish == "stop"


def test_an_environment_without_tools_needs_no_template_for_them():
    class Silent:
        def reset(self, **row):
            return " and more"

    silent = tokenizer(HERMES.replace("{%- if tools %}", "{%- if false %}"))
    played = play(maker([], Silent, tok=silent), ["x"], says(call("f")))
    assert (
        roles(played.first) == ["assistant"]
        and played.groups[0].prompt.content[-1]["content"] == "x and more"
    )


# --- who answers whom ---------------------------------------------------------------------------------------


def test_every_completion_gets_its_own_answer():
    secrets = iter("abcdefgh")
    made = maker([named("f", lambda: next(secrets))])
    said = []

    def script(index, number):
        said.append((index, number))
        return call("f") if number < 1 + index % 2 else "done"

    played = play(made, ["x", "y"], script, group_size=2)
    texts = [results(c) for c in played.completions]
    assert [len(t) for t in texts] == [1, 2, 1, 2] and len({t for own in texts for t in own}) == 6
    for c in played.completions:
        for turn in c.turns[:-1]:
            assert turn.calls[0].result in TOK.decode(c.ids[turn.stop : turn.end])


def test_a_completion_is_the_same_alone_and_in_company():
    made = maker([adder()])
    turns = [call("add", '{"a": 1, "b": 2}'), "3"]
    alone = play(made, ["x"], says(*turns)).first
    for c in play(made, ["x", "y"], says(*turns), group_size=3).completions[:3]:
        assert c.ids == alone.ids and c.messages == alone.messages


def test_prompts_without_environments_are_handed_on_as_they_are():
    made = maker([adder()])
    played = play(made, ["x", "y"], says("hi"))
    assert [g.prompt for g in played.groups] == played.prompts


def test_prompts_longer_than_their_limit_are_cut_with_the_observation():
    class Long:
        def reset(self, **row):
            return "z" * 100

    made = maker([], Long, reader={"max_length": 60})
    played = play(made, ["x"], says("hi"))
    assert len(played.groups[0].prompt.ids) <= 60 and played.groups[0].prompt.num_cut_tokens > 0


# --- tags ---------------------------------------------------------------------------------------------------

SEARCH = Tags("<search>", "</search>", "\n<information>{}</information>\n")


def searcher(log):
    def search(query: str) -> str:
        """Searches.

        Args:
            query: The words.
        """
        log.append(query)
        return f"[{query}]"

    return search


def tagged(log=None, **kw):
    return maker([searcher([] if log is None else log)], tool_format=SEARCH, **kw)


def ends_with(*turns):
    """Turns that end with a closing tag have a stop string's end, others the policy's own."""
    return lambda index, number: (
        turns[number],
        None if turns[number].endswith("</search>") else "<|im_end|>",
    )


def test_a_call_between_tags_is_answered_in_the_same_message():
    log = []
    made = tagged(log)
    assert made.stop_strings == ("</search>",) and made.reader_tools({"prompt": USER}) is None
    c = play(made, ["x"], ends_with("I look <search> a b </search>", "so it is")).first
    assert log == ["a b"] and c.finish == "stop"
    assert c.messages == (
        {
            "role": "assistant",
            "content": "I look <search> a b </search>\n<information>[a b]</information>\nso it is",
        },
    )
    assert TOK.decode(c.ids) == c.messages[0]["content"] + "<|im_end|>"
    assert [t.end - t.stop for t in c.turns] == [len("\n<information>[a b]</information>\n"), 0]


def test_tags_take_text_prompts_too():
    played = play(tagged(), [{"prompt": "Question: x\n"}], ends_with("<search>q</search>", "a"))
    assert TOK.decode(played.first.ids[: played.first.turns[0].end]).endswith(
        "<information>[q]</information>\n"
    )


def test_a_closing_tag_that_nothing_opened_ends_the_episode():
    log = []
    c = play(tagged(log), ["x"], ends_with("no </search>")).first
    assert log == [] and c.finish == "stop_string"


def test_a_search_in_thinking_is_not_run():
    log = []
    c = play(tagged(log), ["x"], ends_with("<think> maybe <search>q</search>")).first
    assert log == [] and c.finish == "stop_string"


def test_control_tokens_and_errors_between_tags_are_text():
    def search(query: str) -> str:
        """Searches.

        Args:
            query: The words.
        """
        if query == "bad":
            raise ValueError("no way")
        return "a<|im_end|>b"

    c = play(
        maker([search], tool_format=SEARCH),
        ["x"],
        ends_with("<search>q</search>", "<search>bad</search>", "a"),
    ).first
    assert c.ids.count(TOK.eos_token_id) == 1
    assert "a<|im_end|>b" in c.messages[0]["content"] and str({"error": "no way"}) in c.messages[0]["content"]


@pytest.mark.parametrize(
    "opens,closes,answer",
    [("", "</s>", "{}"), ("<s>", " ", "{}"), ("<s>", "</s>", "none"), ("<s>", "<s>", "{}")],
)
def test_tags_that_cannot_work_are_refused(opens, closes, answer):
    with pytest.raises(ToolError, match="Tags"):
        Tags(opens, closes, answer)


def test_tags_name_a_tool_that_takes_one_text():
    with pytest.raises(ToolError, match="says no tool"):
        maker([searcher([]), adder()], tool_format=SEARCH)
    with pytest.raises(ToolError, match="'add' takes a, b"):
        maker([adder()], tool_format=SEARCH)
    with pytest.raises(ToolError, match="no tool 'find'"):
        maker([searcher([])], tool_format=Tags("<s>", "</s>", tool="find"))
    two = [Tags("<search>", "</search>", tool="search"), Tags("<run>", "</run>", "<out>{}</out>", tool="run")]

    def run(code: str) -> str:
        """Runs.

        Args:
            code: The code.
        """
        return code.upper()

    made = maker([searcher([]), run], tool_format=two)
    assert made.stop_strings == ("</search>", "</run>")
    c = play(
        made,
        ["x"],
        lambda i, n: [("<run>a</run>", None), ("<search>b</search>", None), ("c", "<|im_end|>")][n],
    ).first
    assert (
        c.messages[0]["content"]
        == "<run>a</run><out>A</out><search>b</search><information>[b]</information>c"
    )


def test_no_id_behind_a_tag_is_taken_away():
    """The last token may hold more than the tag: what was sampled stays."""
    c = play(tagged(), ["x"], lambda i, n: [("<search>q</search>\n", None), ("a", "<|im_end|>")][n]).first
    assert c.ids[: c.turns[0].stop] == encode(TOK, "<search>q</search>\n") and len(c.turns) == 2
