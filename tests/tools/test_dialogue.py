"""One completion's conversation, driven by a scripted policy: ids, messages, calls, ends."""

import sys

import pytest

from covey.tools import ToolError, tool
from tests.tools.chats import adder, call, encode, hermes, maker, named, play, results, roles, says, tokenizer

TOK = hermes()


def between(*texts):
    blocks = "\n".join(f"<tool_response>\n{t}\n</tool_response>" for t in texts)
    return encode(TOK, f"\n<|im_start|>user\n{blocks}<|im_end|>\n<|im_start|>assistant\n")


NINES = call("add", '{"a": 9, "b": 9}')
SUM = call("add", '{"a": 3, "b": 4}')
END = encode(TOK, "<|im_end|>")


def test_messages_and_ids_of_one_call():
    log = []
    c = play(maker([adder(log)]), ["sum"], says(SUM, "is 7")).first
    assert log == [(3, 4)] and c.finish == "stop"
    assert c.messages[0] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 3, "b": 4}}}],
    }
    assert c.messages[1:] == (
        {"role": "tool", "name": "add", "content": "7"},
        {"role": "assistant", "content": "is 7"},
    )
    assert c.ids == encode(TOK, SUM) + END + between("7") + encode(TOK, "is 7") + END
    assert [(len(t.calls), t.end - t.stop) for t in c.turns] == [(1, len(between("7"))), (0, 0)]
    (made,) = c.turns[0].calls
    assert (made.name, made.arguments, made.status, made.result) == ("add", {"a": 3, "b": 4}, "ok", "7")


def test_an_answer_without_a_call():
    c = play(maker([adder()]), ["hi"], says("hello")).first
    assert c.messages == ({"role": "assistant", "content": "hello"},) and len(c.turns) == 1


def test_two_calls_in_one_turn_in_their_order():
    c = play(
        maker([named("f", lambda: "1"), named("g", lambda: "2")]),
        ["x"],
        says(call("f") + "\n" + call("g"), "ok"),
    ).first
    assert [(m.get("name"), m["content"]) for m in c.messages[1:3]] == [("f", "1"), ("g", "2")]
    assert between("1", "2") == c.ids[c.turns[0].stop : c.turns[0].end]


@pytest.mark.parametrize(
    "turn,status,word",
    [
        (call("boom"), "unknown", "boom"),
        (call("add", '{"a": 3}'), "invalid", "'b'"),
        (call("add", '{"a": 3, "b": 4, "c": 5}'), "invalid", "'c'"),
        (call("add", '{"a": "x", "b": 4}'), "invalid", "'a'"),
        (call("add", "{a: 3}"), "malformed", "JSON"),
        ("<tool_call></tool_call>", "malformed", "JSON"),
    ],
)
def test_a_call_that_cannot_be_run_is_told_and_not_run(turn, status, word):
    log = []
    c = play(maker([adder(log)]), ["x"], says(turn, "sorry")).first
    assert log == [] and roles(c) == ["assistant", "tool", "assistant"]
    (made,) = c.turns[0].calls
    assert made.status == status and made.has_failed
    assert c.messages[1]["content"] == made.result and made.result.startswith("{'error': ")
    assert word in made.result.replace("\\", "")


def test_a_broken_call_does_not_take_its_neighbour():
    log = []
    c = play(maker([adder(log)]), ["x"], says(SUM + "\n" + call("add", "{a: 3}"), "ok")).first
    assert log == [(3, 4)]
    assert [made.status for made in c.turns[0].calls] == ["ok", "malformed"]
    assert results(c)[0] == "7" and "error" in results(c)[1]
    calls = c.messages[0]["tool_calls"]
    assert [one["function"]["arguments"] for one in calls] == [{"a": 3, "b": 4}, {}]
    assert "{a: 3}" in calls[1]["malformed"]


def test_a_draft_in_thinking_is_not_run():
    log = []
    c = play(maker([adder(log)]), ["x"], says("<think>\n" + NINES + "\n</think>\n" + SUM, "is 7")).first
    assert log == [(3, 4)] and c.messages[0]["content"] == ""
    assert c.messages[0]["reasoning_content"].startswith("<tool_call>")


def test_a_prompt_that_opened_the_thinking():
    """A template that writes `<think>` before the policy begins: what is drafted before `</think>` is no call."""
    opened = TOK.chat_template.replace(
        "'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>\n' }}{% endif %}"
    )
    assert opened != TOK.chat_template
    log = []
    tok = tokenizer(opened, markers=("<think>", "</think>"))
    c = play(maker([adder(log)], tok=tok), ["x"], says(SUM + "</think>" + SUM, "still thinking")).first
    assert log == [(3, 4)]
    assert c.messages[-1] == {"role": "assistant", "content": "", "reasoning_content": "still thinking"}


def test_words_about_thinking_in_the_prompt_open_none():
    log = []
    c = play(maker([adder(log)]), ["Begin with <think>"], says(SUM, "is 7")).first
    assert log == [(3, 4)] and roles(c) == ["assistant", "tool", "assistant"]


# --- results ------------------------------------------------------------------------------------------------


def test_an_exception_is_data_in_trls_words():
    def fails():
        raise ValueError("no way")

    c = play(maker([named("boom", fails)]), ["x"], says(call("boom"), "ok")).first
    assert results(c) == [str({"error": "no way"})] and c.turns[0].calls[0].status == "raised"


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("even this")


class Hard(BaseException):
    """As native code raises it."""


@pytest.mark.parametrize(
    "body,text",
    [
        (lambda: sys.exit(3), "3"),
        (lambda: sys.exit(), "exited"),
        (lambda: (_ for _ in ()).throw(Silent()), "Silent"),
        (lambda: (_ for _ in ()).throw(Hard("x")), "x"),
        (lambda: (_ for _ in ()).throw(AssertionError()), "AssertionError"),
        (lambda: (_ for _ in ()).throw(ValueError("a\ud800b")), "a?b"),
    ],
)
def test_whatever_a_tool_raises_is_data(body, text):
    c = play(maker([named("boom", body)]), ["x"], says(call("boom"), "ok")).first
    assert c.turns[0].calls[0].status == "raised" and text in results(c)[0] and c.finish == "stop"


def test_ctrl_c_passes():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(maker([named("boom", interrupted)]), ["x"], says(call("boom"), "ok"))


class Odd:
    def __str__(self):
        raise RuntimeError("no text")


circular: list = []
circular.append(circular)


@pytest.mark.parametrize(
    "value,text,status",
    [
        (7, "7", "ok"),
        (None, "", "ok"),
        (True, "True", "ok"),
        ({"a": [1]}, '{"a": [1]}', "ok"),
        ([1, "é"], '[1, "é"]', "ok"),
        ("a\ud800b", "a?b", "ok"),
        (b"x", "b'x'", "ok"),
        (circular, "[[...]]", "ok"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", "ok"),
        ([{"type": "image", "image": object()}], "boom returned an image", "raised"),
        (Odd(), "no text", "raised"),
    ],
)
def test_any_result_becomes_text(value, text, status):
    c = play(maker([named("boom", lambda: value)]), ["x"], says(call("boom"), "ok")).first
    (made,) = c.turns[0].calls
    assert made.status == status
    assert made.result == text if status == "ok" else text in made.result
    assert c.ids[c.turns[0].stop : c.turns[0].end] == between(made.result), "ids and messages agree"


def test_a_long_result_is_cut_in_the_middle():
    long = tool(max_result=20)(named("long", lambda: "a" * 50 + "b" * 50))
    c = play(
        maker([long, named("short", lambda: "c" * 30)], max_tool_result=30),
        ["x"],
        says(call("long") + call("short"), "ok"),
    ).first
    assert results(c) == ["a" * 10 + "\n[... 80 characters left out ...]\n" + "b" * 10, "c" * 30]


def test_an_endless_result_is_cut_without_reading_it_all():
    seen = []
    made = maker([named("boom", lambda: "ab" * 5_000_000)], max_tool_result=8)
    encode_ = made.parts.shortener.encode
    object.__setattr__(made.parts.shortener, "encode", lambda t: (seen.append(len(t)), encode_(t))[1])
    c = play(made, ["x"], says(call("boom"), "ok")).first
    assert results(c)[0].startswith("abab\n[...") and max(seen) < 2000


# --- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit,answered,finish", [(0, 0, "turns"), (1, 1, "turns"), (2, 2, "stop"), (None, 2, "stop")]
)
def test_limit_of_turns(limit, answered, finish):
    """So many turns of calls are answered; the next call stands last, unanswered."""
    made = maker([named("f", lambda: "1")], max_tool_calling_iterations=limit)
    c = play(made, ["x"], says(call("f"), call("f"), "done")).first
    assert roles(c) == ["assistant", "tool"] * answered + ["assistant"] and c.finish == finish
    assert c.is_truncated == (finish == "turns")
    if finish == "turns":
        assert c.turns[-1].calls[0].status == "not_run" and not c.turns[-1].calls[0].has_failed
        assert c.messages[-1]["tool_calls"]


def test_a_turn_that_was_cut_is_never_parsed():
    """The limit cuts behind a whole call, and inside the next."""
    log = []
    turn = SUM + "\n" + SUM
    c = play(maker([adder(log)]), ["x"], says(turn), limit=len(encode(TOK, turn)) - 3).first
    assert log == [] and c.finish == "length" and c.is_truncated
    assert roles(c) == ["assistant"] and "tool_calls" not in c.messages[0] and c.turns[0].calls == ()


FIRST = encode(TOK, call("f")) + END
ANSWER = len(between("R"))


@pytest.mark.parametrize(
    "room,more,finish",
    [(ANSWER + 1, 1, "length"), (ANSWER, 0, "length"), (ANSWER - 1, 0, "length"), (0, 0, "length")],
)
def test_w3_an_answer_must_leave_room(room, more, finish):
    """One token is drawn behind it; where none could be, it is dropped: ids, messages and end agree."""
    c = play(maker([named("f", lambda: "R")]), ["x"], says(call("f"), "ok"), limit=len(FIRST) + room).first
    assert c.finish == finish and c.is_truncated
    assert c.ids[: len(FIRST)] == FIRST
    assert roles(c) == (["assistant", "tool", "assistant"] if more else ["assistant"])
    assert len(c.ids) == (len(FIRST) + ANSWER + 1 if more else len(FIRST))
    assert c.turns[0].calls[0].result == "R" and c.turns[0].calls[0].status == "ok"


def test_an_answer_that_is_too_long_may_be_cut():
    limit = len(FIRST) + ANSWER + 60
    made = maker([named("f", lambda: "R" * 500)], tool_overflow="cut")
    c = play(made, ["x"], says(call("f"), "ok"), limit=limit).first
    assert "left out" in results(c)[0] and c.finish == "stop"
    assert c.ids[c.turns[0].stop : c.turns[0].end] == between(results(c)[0])
    tight = play(made, ["x"], says(call("f"), "ok"), limit=len(FIRST) + 10).first
    assert tight.ids == FIRST and tight.finish == "length"


@pytest.mark.parametrize("overflow", ["end", "cut"])
def test_an_endless_answer_is_not_encoded(monkeypatch, overflow):
    """A tokenizer takes minutes over ten megabytes, for a result that has no room in any case."""
    from covey.tools.render import Renderer

    encoded, encode_neutral = [], Renderer.encode_neutral

    def noting(self, text, mark):
        encoded.append(len(text))
        return encode_neutral(self, text, mark)

    made = maker([named("f", lambda: "R" * 10**6)], tool_overflow=overflow)
    monkeypatch.setattr(Renderer, "encode_neutral", noting)
    c = play(made, ["x"], says(call("f"), "ok"), limit=len(FIRST) + ANSWER + 200).first
    assert encoded and max(encoded) < 10**4
    assert c.finish == ("length" if overflow == "end" else "stop")
    assert c.turns[0].calls[0].status == "ok"


def test_a_tool_may_end_the_episode():
    c = play(maker([tool(ends=True)(adder())]), ["x"], says(SUM)).first
    assert roles(c) == ["assistant", "tool"] and c.finish == "tool" and not c.is_truncated
    assert c.messages[-1]["content"] == "7"
    answer = TOK.decode(c.ids[c.turns[0].stop :])
    assert "<tool_response>\n7\n" in answer and not answer.endswith("assistant\n")


def test_the_result_that_ends_is_seen_without_room_for_it():
    c = play(maker([tool(ends=True)(adder())]), ["x"], says(SUM), limit=len(encode(TOK, SUM)) + 1).first
    assert c.finish == "tool" and c.messages[-1]["content"] == "7" and c.ids == encode(TOK, SUM) + END


def test_a_call_that_failed_ends_nothing():
    c = play(maker([tool(ends=True)(adder())]), ["x"], says(call("add", '{"a": 1}'), "sorry")).first
    assert roles(c) == ["assistant", "tool", "assistant"] and c.finish == "stop"


def failing():
    raise ValueError("no way")


def test_a_failure_may_leave_the_sample_without_a_score():
    made = maker([tool(on_error="fail")(named("f", failing))])
    assert play(made, ["x"], says(call("f"), "ok")).first.finish == "failed"
    assert play(made, ["x"], says(call("f", '{"a": 1}'), "ok")).first.finish == "stop", (
        "the policy's fault, not the tool's"
    )


def test_a_failure_may_end_the_run():
    with pytest.raises(ToolError, match=r"'f' failed.*no way") as e:
        play(maker([tool(on_error="raise")(named("f", failing))]), ["x"], says(call("f"), "ok"))
    assert isinstance(e.value.__cause__, ValueError)


def test_an_episode_has_only_so_many_seconds_of_calls():
    import time

    made = maker([named("f", lambda: time.sleep(0.03))], episode_timeout=0.02)
    c = play(made, ["x"], says(call("f"), "ok")).first
    assert c.finish == "deadline" and c.is_truncated and roles(c) == ["assistant"]
    assert c.turns[0].calls[0].status == "ok"


def test_another_end_and_a_stop_string_are_closed_by_the_template():
    for end, head in (("<|endoftext|>", "<|endoftext|>"), (None, "")):
        c = play(maker([adder()]), ["x"], lambda i, n, end=end: [(SUM, end), ("is 7", "<|im_end|>")][n]).first
        assert TOK.decode(c.ids).startswith(f"{SUM}{head}<|im_end|>\n<|im_start|>user\n<tool_response>")
        assert results(c) == ["7"]


def test_content_for_rewards_has_no_control_tokens():
    c = play(maker([adder()]), ["x"], says("a<|im_start|>b")).first
    assert c.messages[0]["content"] == "ab" and "<|im_start|>" in c.text
