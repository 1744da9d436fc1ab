"""Episodes as people read them: in the terminal, in tables and files, bounded, with nothing hidden."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

import covey.runs
from covey.runs.record import tables
from covey.runs.record.completions_jsonl import CompletionLog, completion_rows
from covey.runs.record.episodes import turn_entries
from covey.runs.terminal.display import Display
from covey.runs.transcript import PART, PARTS, Part, call_text, episode_text, plain_lines, transcript
from covey.types import Score
from tests.runs.episodes import QUESTION, Told, answered, call, episodes, silent, stumbling, write_episodes
from tests.runs.synthetic import HOSTILE, Story, batch


def parts_of(completion):
    return transcript(completion.messages, turn_entries(episodes([completion], [1.0]), 0))


def test_an_episode_is_told_in_order_and_by_whom():
    assert parts_of(answered()) == [
        Part("assistant", "Let me see."),
        Part("call", 'calculator(expression="12*37"), 0.25 s'),
        Part("tool calculator", "444", is_injected=True),
        Part("assistant", "It is 444."),
    ]


def test_calls_say_what_became_of_them():
    assert [p.text for p in parts_of(stumbling()) if p.speaker == "call"] == [
        'calculator(expression="12*37"), failed: raised, 0.25 s',
        'serch(query="x"), failed: unknown',
        'search(query="12"), not run',
    ]


def test_in_plain_text_exactly_what_the_policy_did_not_write_has_a_bar():
    lines = list(plain_lines(parts_of(Told().says("one\ntwo", call(result="three\nfour")).ends())))
    assert lines == [
        "assistant: one", "    two", 'call: calculator(expression="12*37"), 0.25 s', "| tool calculator: three", "|     four",
    ]  # fmt: skip


def test_the_policy_cannot_forge_an_answer():
    lines = plain_lines(parts_of(Told().says("x\n| tool calculator: 444\r\n| 444").ends()))
    assert not [line for line in lines if line.startswith("|")]


def test_thinking_and_user_messages_are_told_apart():
    messages = [
        {"role": "assistant", "reasoning_content": "hm", "content": "Done?"},
        {"role": "user", "content": [{"type": "text", "text": "No."}]},
    ]
    assert [(p.speaker, p.text, p.is_injected) for p in transcript(messages)] == [
        ("thinking", "hm", False), ("assistant", "Done?", False), ("user", "No.", True),
    ]  # fmt: skip


def test_without_turns_the_calls_are_those_of_the_messages():
    calls = [p.text for p in transcript(stumbling().messages) if p.speaker == "call"]
    assert calls == ['calculator(expression="12*37")', 'serch(query="x")', 'search(query="12")']


def test_where_results_stand_in_one_message_no_call_is_lost():
    messages = [{"role": "assistant", "content": "<search>a</search><information>b</information> so c"}]
    turns = turn_entries(episodes([answered()], [1.0]), 0)
    assert [p.speaker for p in transcript(messages, turns)] == ["assistant", "call"]


def test_an_episode_without_end_is_bounded():
    told = Told()
    for _ in range(500):
        told.says("x" * 100_000, call(result="y" * 100_000, query="z" * 100_000))
    found = parts_of(told.ends())
    assert len(found) == PARTS + 1 and found[PARTS // 2].text == f"… {1500 - PARTS} parts left out …"
    assert max(len(p.text) for p in found) < PART + 100


@pytest.mark.parametrize("text", [*HOSTILE, "\x1b]0;owned\x07", "lone \ud800", "\u202e"])
def test_nothing_hidden_is_left_in_any_part(text):
    hostile = Told().says(text, call(text, text, "raised", query=text)).ends()
    messages = [*hostile.messages, {"role": text, "name": text, "content": text, "reasoning_content": text}]
    for turns in ((), turn_entries(episodes([hostile], [1.0]), 0)):
        shown = episode_text(messages, turns)
        assert not {"\x00", "\x1b", "\x07", "\u202e", "\u2066", "\u200b", "\u2028", "\ud800"} & set(shown)


@pytest.mark.parametrize(
    "message",
    [
        {}, {"role": None}, {"role": "assistant"}, {"role": "assistant", "tool_calls": "x"}, {"role": "tool", "name": 3},
        {"role": "assistant", "tool_calls": [None, {"function": "f"}, {"name": "g", "arguments": "{"}, {}]},
    ],
)  # fmt: skip
def test_messages_of_another_shape_are_shown_all_the_same(message):
    assert isinstance(episode_text([message]), str)


def test_calls_whose_arguments_were_cut_or_left_out_are_shown_as_they_are():
    assert call_text(
        {"name": "f", "arguments": '{"a": "xx [9 characters left out]', "status": "ok"}
    ).startswith('f({"a": "xx')
    assert call_text({"status": "timeout", "seconds": 2.0}) == "?(), failed: timeout, 2.0 s"


# --- where they are shown -----------------------------------------------------------------------------------------------


def both():
    return episodes([answered(), stumbling()], [1.0, 0.0])


def test_printed_completions_are_transcripts_and_their_own_prompts():
    first, _, _, second, prompt, completion = tables.printed(completion_rows(3, [both()]), 3)
    assert first == "Step 3, reward 1.0, advantage +0.50, ended by stop, turns 2, calls 1"
    assert second.endswith("ended by turns, turns 2, calls 2, failed 2")
    assert "You are in the cellar." in prompt
    assert "\n    | tool calculator: {'error': 'boom'}\n" in completion


def test_the_file_of_completions_has_messages_and_turns(tmp_path):
    log = CompletionLog(tmp_path / "completions.jsonl")
    log.write(1, [both()])
    first, second = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text().splitlines()]
    assert first["messages"] == list(answered().messages)
    assert (first["tokens"], first["written_tokens"]) == (9, 5) and first["turns"][0]["injected"] == 4
    assert second["prompt"] == stumbling().own_prompt and first["prompt"] == QUESTION


def test_without_tools_the_file_has_the_columns_that_it_always_had():
    (row, *_) = completion_rows(1, batch(Story(prompts_per_step=1, group_size=2), 1))
    assert not {"messages", "turns", "written_tokens"} & set(row)


def test_a_reward_with_the_name_of_a_new_column_keeps_its_value():
    scored = both()
    named = replace(
        scored, scores={"turns": (Score(0.5), Score(0.25)), "messages": scored.scores["accuracy"]}
    )
    row, _ = completion_rows(1, [named])
    assert row["rewards/turns"] == 0.5 and row["rewards/messages"] == 1.0 and len(row["turns"]) == 2
    plain = replace(named, group=replace(scored.group, completions=tuple(
        replace(c, turns=None, messages=None, written=None) for c in scored.group.completions)))  # fmt: skip
    row, _ = completion_rows(1, [plain])
    assert row["turns"] == 0.5 and row["messages"] == 1.0
    assert sent([row])[0][1][0][sent([row])[0][0].index("turns")] == 0.5


def sent(rows):
    got = []

    class Logger:
        pass

    Logger.__name__ = "WandbCallback"
    before, tables.SENDERS["WandbCallback"] = (
        tables.SENDERS["WandbCallback"],
        lambda callback, columns, cells, step, shown: got.append((columns, cells)),
    )
    try:
        tables.send([Logger()], rows, 1)
    finally:
        tables.SENDERS["WandbCallback"] = before
    return got


def test_loggers_get_transcripts_in_place_of_texts_of_which_nobody_knows_who_wrote_what():
    ((columns, cells),) = sent(list(completion_rows(1, [both()])))
    assert "messages" not in columns and "turns" not in columns and "written_tokens" in columns
    text = cells[0][columns.index("completion")]
    assert text.splitlines()[2:] == ["| tool calculator: 444", "assistant: It is 444."]


def drawn(group, height=30):
    console = Console(width=100, height=height, file=io.StringIO(), force_terminal=True)
    display = Display("", 10, console=console)
    display.update(1, {"reward": 1.0, "episodes/turns/mean": 2.0, "tools/call_frequency": 0.7}, [group])
    out = Console(width=100, height=height, file=io.StringIO(), force_terminal=True, color_system="standard")
    out.print(display.render(100, height))
    return out.file.getvalue()


def test_the_live_display_has_what_the_policy_did_not_write_in_grey():
    lines = drawn(both()).splitlines()
    (tool,) = [line for line in lines if "tool calculator: 444" in line]
    (said,) = [line for line in lines if "assistant: It is 444." in line]
    assert "\x1b[90m" in tool and "\x1b[90m" not in said
    assert any("calls per completion" in line and "0.700" in line for line in lines)


def test_a_small_display_keeps_the_beginning_and_the_end():
    told = Told()
    for n in range(30):
        told.says(f"turn {n}", call(result=f"result {n}"))
    shown = drawn(episodes([told.ends()], [1.0]), 16)
    assert "turn 0" in shown and "result 29" in shown and "more" in shown and "turn 15" not in shown
    assert len(shown.splitlines()) <= 16


def test_a_plain_line_says_how_often_tools_are_called():
    display = Display("", 10, is_live=False, console=Console(file=io.StringIO(), width=200))
    display.update(1, {"reward": 1.0, "tools/call_frequency": 0.75})
    assert "calls 0.750" in display.line()


def test_a_run_gives_the_transcript_of_an_episode(tmp_path):
    run = covey.runs.open(
        write_episodes(tmp_path, batch(Story(prompts_per_step=1, group_size=2), 1), [both()])
    )
    assert run.transcript(2, 0, 0).splitlines()[2] == "| tool calculator: 444"
    assert run.transcript(1, 0, 1) == run.completions()["completion"][1]
    with pytest.raises(LookupError, match="no completion 5 of group 0 at step 2"):
        run.transcript(2, 0, 5)
    silently = covey.runs.open(
        write_episodes(tmp_path / "b", [episodes([silent()], [0.0])], record_completions="none")
    )
    with pytest.raises(LookupError, match="not recorded"):
        silently.transcript(1)
