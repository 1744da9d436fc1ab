"""Exported conversations are what the record has, in a form that other programs read."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import covey.runs
from covey.cli import main
from covey.errors import ConfigError
from covey.runs.export import Export
from covey.types import Completion, Group, Prompt, Score, ScoredGroup
from tests.runs.episodes import QUESTION, Told, answered, call, episodes, silent, stumbling, write_episodes
from tests.runs.synthetic import HOSTILE, Story, batch, write_run

SCHEMAS = {name: {"type": "function", "function": {"name": name}} for name in ("calculator", "buy", "look")}
TOOLS = {
    "calculator": {"where": "inline", "schema": SCHEMAS["calculator"]},
    "buy": {"where": "inline", "schema": SCHEMAS["buy"], "environments": ["shop"]},
    "look": {"where": "inline", "schema": SCHEMAS["look"], "environments": ["shop", "maze"]},
}


def exported(folder, *steps, header=None, **how):
    return list(Export(covey.runs.open(write_episodes(folder, *steps, **(header or {}))), **how))


def plain(content, *texts, columns=None):
    """A group without tools."""
    completions = tuple(Completion((1,), (-1.0,), text, "stop") for text in texts)
    scores = tuple(Score(float(n)) for n in range(len(texts)))
    return ScoredGroup(
        Group(Prompt(content, (1,), columns or {}, 3), completions),
        {"accuracy": scores}, tuple(s.value for s in scores), (0.0,) * len(texts),
    )  # fmt: skip


def test_a_line_by_hand(tmp_path):
    first, second = exported(tmp_path, [episodes([answered(), stumbling()], [1.0, 0.0])])
    assert first == {
        "messages": [*QUESTION, *answered().messages], "reward": 1.0, "finish": "stop", "step": 1, "group": 0, "index": 0,
        "row": 7, "task": "sums",
    }  # fmt: skip
    assert second["messages"] == [*stumbling().own_prompt, *stumbling().messages]  # as this member was asked
    assert second["finish"] == "turns"


def test_completions_without_tools_are_conversations_too(tmp_path):
    first, second = exported(tmp_path, [plain(QUESTION, "44", "444")])
    assert first["messages"] == [*QUESTION, {"role": "assistant", "content": "44"}]
    assert second["reward"] == 1.0 and "tools" not in second


def test_an_answer_that_the_prompt_begins_is_one_message(tmp_path):
    begun = [*QUESTION, {"role": "assistant", "content": "It is "}]
    (line,) = exported(tmp_path, [plain(begun, "444")])
    assert line["messages"] == [*QUESTION, {"role": "assistant", "content": "It is 444"}]


@pytest.mark.parametrize("content", ["2 + 2 = ", QUESTION])
def test_prompt_and_completion_apart_are_texts_or_messages(tmp_path, content):
    (line,) = exported(tmp_path, [plain(content, "4")], format="prompt_completion")
    assert line["prompt"] == content and "messages" not in line
    assert line["completion"] == (
        "4" if isinstance(content, str) else [{"role": "assistant", "content": "4"}]
    )


def test_text_prompts_are_no_messages(tmp_path):
    with pytest.raises(ConfigError, match="--format prompt_completion"):
        exported(tmp_path, [plain("2 + 2 = ", "4")])


def test_rewards_and_steps_choose(tmp_path):
    groups = [episodes([answered(), silent()], [1.0, 0.25])]
    unscored = [replace(groups[0], totals=(None, 0.5))]
    run = covey.runs.open(write_episodes(tmp_path, groups, unscored, groups))
    assert [(line["step"], line["index"]) for line in Export(run, min_reward=0.5)] == [(1, 0), (2, 1), (3, 0)]
    assert [line["reward"] for line in Export(run, steps=range(2, 3))] == [None, 0.5]
    assert len(list(Export(run))) == 6


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({}, ["calculator"]),
        ({"environment": "shop"}, ["calculator", "buy", "look"]),
        ({"environment": "maze"}, ["calculator", "look"]),
        ({"environment": "shop", "tools": ["buy"]}, ["buy"]),
        ({"environment": "shop", "tools": '["buy"]'}, ["buy"]),
        ({"environment": "shop", "tools": [SCHEMAS["buy"]]}, ["buy"]),
    ],
)
def test_tools_are_those_that_the_row_could_call(tmp_path, columns, names):
    (line,) = exported(tmp_path, [plain(QUESTION, "x", columns=columns)], header={"tools": TOOLS})
    assert line["tools"] == [SCHEMAS[name] for name in names]


def test_texts_that_are_not_recorded_are_counted_and_nothing_is_made_up(tmp_path, capsys):
    write_episodes(tmp_path, [episodes([answered()], [1.0])], record_completions="none")
    export = Export(covey.runs.open(tmp_path))
    assert list(export) == [] and (export.written, export.without_text) == (0, 1)
    assert main(["export", str(tmp_path)]) == 2
    assert "1 completions are left out: their texts are not recorded" in capsys.readouterr().err


def test_the_verb_writes_lines_to_a_file_or_the_standard_output(tmp_path, capsys):
    write_episodes(
        tmp_path,
        [episodes([answered(), silent()], [1.0, 0.0])],
        batch(Story(prompts_per_step=2, group_size=2), 2),
    )
    file = tmp_path / "out.jsonl"
    assert main(["export", str(tmp_path), "--steps", "1", "-o", str(file)]) == 0
    assert capsys.readouterr().err == "2 completions\n"
    assert [json.loads(line)["reward"] for line in file.read_text().splitlines()] == [1.0, 0.0]
    assert main(["export", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 6 and all(line["messages"][-1]["role"] == "assistant" for line in lines)


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    write_episodes(
        tmp_path, *[[episodes([answered("4" * 3_000)] * 8, [1.0] * 8)]] * 20
    )  # more than a pipe holds
    with subprocess.Popen(
        [sys.executable, "-m", "covey", "export", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stderr is not None
        assert json.loads(child.stdout.readline())["step"] == 1
        child.stdout.close()
        assert "Traceback" not in child.stderr.read()
    assert child.returncode == 0


def test_whatever_was_said_comes_back_and_no_terminal_obeys_it(tmp_path, capsys):
    texts = [text for text in HOSTILE if "\ud800" not in text]
    told = [Told().says(text, call(result=text, query=text)).ends() for text in [*texts, "\ud800"]]
    write_episodes(tmp_path, [episodes(told, [1.0] * len(told))])
    assert main(["export", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(shown)
    assert [json.loads(line)["messages"][1:] for line in shown.splitlines()] == [
        list(c.messages) for c in told
    ]


def test_the_lines_are_a_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    write_run(tmp_path / "record", Story(steps=2, prompts_per_step=2, group_size=2, evaluate_every=0))
    file = tmp_path / "out.jsonl"
    assert main(["export", str(tmp_path), "-o", str(file)]) == 0
    rows = datasets.Dataset.from_list([json.loads(line) for line in file.read_text().splitlines()])
    assert len(rows) == 8 and rows[0]["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "a:b"], "give FROM:TO"), (["-o", "/no such folder/x.jsonl"], "cannot be written"),
        (["--format", "parquet"], "invalid choice"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, capsys, options, message):
    write_episodes(tmp_path, [episodes([silent()], [1.0])])
    try:
        code = main(["export", str(tmp_path), *options])
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and message in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nothing")]) == 2
