"""Episodes on the page: a chat with a bar per turn, a table of tools, the slowest calls; texts stay texts."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import get_args

import pytest

import covey.runs.report
from covey.runs import RunWriter
from covey.runs.report import write_report
from covey.runs.report.columns import FINISHES
from covey.runs.report.embed import _compressed_text_bytes, embed
from covey.runs.report.source import CompletionSource
from covey.runs.report.summary import RunSummary
from covey.runs.report.tool_table import SLOWEST
from covey.types import TRUNCATED, FinishReason
from tests.clocks import PATIENCE
from tests.runs.episodes import Told, answered, call, episodes, silent, stumbling, write_episodes
from tests.runs.report.test_page import Page, unpack
from tests.runs.synthetic import Story, batch

PLAIN = Story(prompts_per_step=1, group_size=2)
EVIL = "</script><u>x</u>\x1b[31m\u202e"


def evil():
    made = call(EVIL, EVIL, "raised", 1.5, query=EVIL)
    return Told().says(EVIL, made, injected=3, sampled=2).says("so", sampled=2).ends("deadline")


def four():
    credit = ((0.5, -0.25), (0.0, -0.5), (0.1,), (0.1, 0.2))
    return episodes([answered(), stumbling(), silent(), evil()], [1.0, 0.0, 0.0, 0.0], turn_advantages=credit)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("episodes")
    write_episodes(folder, batch(PLAIN, 1), [four()])
    return Page(write_report([folder], folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def drawn(page, tmp_path_factory):
    """What the page's own scripts make of it, by Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this machine")
    directory, columns = unpack(page.blob("b0-0-numbers"))
    held = {
        "data": page.data, "texts": json.loads(page.blob("b0-0-text-0")), "directory": directory,
        "columns": {name: [None if v != v else v for v in values.tolist()] for name, values in columns.items()},
    }  # fmt: skip
    file = tmp_path_factory.mktemp("page") / "page.json"
    file.write_text(json.dumps(held))
    scripts = Path(covey.runs.report.__file__).parent / "page"
    command = [node, str(Path(__file__).with_name("dom.js")), str(scripts), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_page_holds_numbers_messages_and_turns(page):
    _, columns = unpack(page.blob("b0-0-numbers"))
    assert columns["num_turns"].tolist() == [-1, -1, 2, 2, 1, 2]
    assert columns["calls"].tolist() == [-1, -1, 1, 2, 0, 1]
    assert columns["call_failures"].tolist() == [-1, -1, 0, 2, 0, 1]
    assert columns["tokens"].tolist()[2:] == [5, 9, 4, 4]  # those that the policy wrote
    assert [FINISHES[f] for f in columns["finish"]][2:] == ["stop", "turns", "stop", "deadline"]
    plain, _, first, second, *_ = json.loads(page.blob("b0-0-text-0"))
    assert set(plain) == {"text", "extra"}
    assert (
        first["messages"] == list(answered().messages) and len(first["turns"]) == 2 and "prompt" not in first
    )
    assert second["prompt"] == stumbling().own_prompt


def test_tools_are_counted(page):
    (source,) = page.data["runs"][0]["sources"]
    tools = source["tools"]
    assert (tools["episodes"], tools["silent"]) == (4, 1)
    calculator, other, search, made_up = tools["tools"]
    assert calculator == {
        "name": "calculator", "madeUp": False, "calls": 2, "notRun": 0, "failures": {"raised": 1}, "seconds": 0.5, "longest": 0.25,
    }  # fmt: skip
    assert other["name"] == EVIL and other["calls"] == 1
    assert (search["name"], search["calls"], search["notRun"]) == ("search", 0, 1)
    assert (made_up["name"], made_up["madeUp"], made_up["failures"]) == ("no such tool", True, {"unknown": 1})
    slowest = tools["slowest"]
    assert [c["seconds"] for c in slowest] == [1.5, 0.25, 0.25]
    assert (slowest[0]["step"], slowest[0]["group"], slowest[0]["index"]) == (2, 0, 3)


def test_a_run_without_tools_has_no_table_of_them(tmp_path):
    write_episodes(tmp_path, batch(PLAIN, 1))
    assert RunSummary(tmp_path / "record").data()["sources"][0]["tools"] is None


def test_names_that_the_policy_made_up_do_not_fill_the_table_and_only_the_slowest_calls_are_told(tmp_path):
    told = Told()
    for n in range(300):
        told.says("", call(f"made up {n}", "", "unknown", 0.0), call(seconds=float(n)))
    write_episodes(tmp_path, [episodes([told.ends()], [1.0])])
    tools = RunSummary(tmp_path / "record").data()["sources"][0]["tools"]
    assert [t["calls"] for t in tools["tools"]] == [300, 300]
    assert [c["seconds"] for c in tools["slowest"]] == [float(n) for n in range(299, 299 - SLOWEST, -1)]


def test_a_source_that_follows_a_run_counts_what_a_fresh_one_counts(tmp_path):
    writer = RunWriter.open(
        tmp_path / "record", settings={}, rewards={"accuracy": 1.0}, environment={}, git={}
    )
    following = CompletionSource(tmp_path / "record", "training", ["accuracy"])
    index = None
    for step in range(1, 5):
        writer.groups(step, [four()])
        following.refresh()
        index = index or following.index
    writer.close()
    following.refresh()
    assert following.index is index, "what was read is not read again"
    fresh = CompletionSource(tmp_path / "record", "training", ["accuracy"])
    fresh.refresh()
    assert following.rows == 16 and following.tools.data() == fresh.tools.data()
    assert following.tools.data()["tools"][0]["calls"] == 8


def test_the_words_of_the_page_are_those_of_the_types(drawn):
    assert drawn["finishes"] == list(get_args(FinishReason)) == list(FINISHES)
    assert set(drawn["truncated"]) == TRUNCATED


def test_a_chat_has_a_bubble_per_message_and_only_what_answers_the_policy_is_grey(drawn):
    _, _, first, second, *_ = drawn["cards"]
    assert [b["injected"] for b in first["bubbles"]] == [False, True, False]
    assert first["bubbles"][1]["text"] == "tool calculator444"
    assert first["facts"] == "5 tokens · 2 turns · 1 call"
    assert second["facts"] == "9 tokens · 2 turns · 2 calls, 2 failedout of turns"
    assert second["calls"][0] == (
        'calculator({"expression":"12*37"})failed: raised0.25 sserch({"query":"x"})failed: unknown'
    )
    assert "not run" in second["calls"][1]
    assert second["prompt"] and "You are in the cellar." in second["prompt"][0] and not first["prompt"]


def test_a_bar_per_turn_says_what_the_turn_was_worth(drawn):
    assert drawn["cards"][2]["turns"] == [
        "turn 13 tokens, 4 answered log p −0.500 +0.500reward 0.2000.25 s",
        "turn 22 tokens log p −1 −0.250reward 0.500",
    ]


def test_completions_without_tools_are_drawn_as_they_were(drawn):
    plain = drawn["cards"][0]
    assert not plain["bubbles"] and not plain["turns"] and plain["facts"].endswith(" tokens")


def test_no_text_of_an_episode_becomes_markup_and_nothing_is_hidden(page, drawn):
    card = drawn["cards"][5]
    assert not {"u", "script"} & set(card["tags"]) and card["marks"].count("ESC") >= 4
    assert any("</script><u>x</u>" in bubble["text"] for bubble in card["bubbles"])
    assert not set("<>&") & set(page.scripts["data"])
    assert {"\x1b", "\u202e"}.isdisjoint(json.dumps(drawn, ensure_ascii=False))


def test_filters_know_calls_and_ends_by_limits(drawn):
    assert drawn["filters"] == {"some": [2, 3, 5], "none": [4], "failed": [3, 5]}
    assert set(drawn["cut"]) >= {3, 5} and 2 not in drawn["cut"]


def test_long_episodes_come_in_parts(drawn):
    assert drawn["long"] == [40, 80]


def test_the_table_of_tools(drawn):
    head, calculator, *_ = drawn["tools"]
    assert head[0] == "tool"
    assert calculator == ["calculator", "2", "0.500", "50 %", "0.25 s", "0.25 s", "0.50 s", "1 raised"]


def test_the_size_of_a_page_is_reckoned_with_messages(tmp_path):
    random = Random(0)
    long = [
        Told().says("", call(result="".join(chr(random.randint(33, 122)) for _ in range(20_000)))).ends()
        for _ in range(20)
    ]
    write_episodes(tmp_path, *[[episodes([replace(one, text="short")], [1.0])] for one in long])
    source = CompletionSource(tmp_path / "record", "training", ["accuracy"])
    source.refresh()
    real = sum(len(block) for name, block in embed(source, 10**9).blocks.items() if name.startswith("text"))
    assert 0.7 < _compressed_text_bytes(source) / real < 1.4
    assert embed(source, real // 4).size <= real // 4
