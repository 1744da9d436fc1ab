"""Datasets of a recipe: files, generators, streams, and how their rows become prompts."""

import json
import sys

import pytest
from datasets import Dataset, IterableDataset

from covey.errors import ConfigError, DatasetError
from covey.recipes.nodes import Mark, node_of
from covey.recipes.reading import read_yaml
from covey.recipes.sources import check_data_node, is_one_dataset, load_data, section_of
from covey.tasks import countdown_rows

ROWS = [{"question": f"{a} + 1?", "answer": a + 1, "level": "easy"} for a in range(5)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with a module of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_rows_of_data.py").write_text(
        "def rows(count, start=0):\n    return [{'prompt': f'say {i}', 'n': i} for i in range(start, start + count)]\n"
        "def endless(start=0):\n    while True:\n        yield {'prompt': f'say {start}'}\n        start += 1\n"
        "def number(): return 7\n"
        "def lazy(count): yield from rows(count)\n"
    )
    yield tmp_path
    sys.modules.pop("own_rows_of_data", None)


def load(text):
    node = read_yaml(text, "r.yaml")
    check_data_node(node)
    return load_data(node)


def write(folder, suffix, rows=None):
    rows = Dataset.from_list(rows or ROWS)
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        rows.to_parquet(path)
    elif suffix == ".csv":
        rows.to_csv(path)
    elif suffix == ".json":
        path.write_text(json.dumps(rows.to_list()))
    else:
        path.write_text("\n".join(map(json.dumps, rows.to_list())))
    return path.name


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv", ".parquet"])
def test_a_file_gives_its_rows_with_the_prompts_where_one_says(folder, suffix):
    found = load(f"file: {write(folder, suffix)}\nprompt: question\nrename: {{answer: target}}")
    assert found["prompt"] == [row["question"] for row in ROWS] and found["target"] == [1, 2, 3, 4, 5]
    assert set(found.column_names) == {"prompt", "target", "level"}


def test_several_files_are_one_dataset_and_a_limit_takes_the_first_rows(folder):
    write(folder, ".jsonl")
    (folder / "more.jsonl").write_text(json.dumps({**ROWS[0], "question": "last"}))
    found = load("file: [rows.jsonl, more.jsonl]\nprompt: question")
    assert len(found) == 6 and found["prompt"][-1] == "last"
    assert load("file: rows.jsonl\nprompt: question\nlimit: 2")["prompt"] == ["0 + 1?", "1 + 1?"]
    assert len(load("file: rows.jsonl\nprompt: question\nlimit: 99")) == 5


def test_templates_and_system_prompts_make_chats(folder):
    write(folder, ".jsonl")
    assert (
        load("file: rows.jsonl\ntemplate: 'Q ({level}): {question} {{brief}}'")["prompt"][0]
        == "Q (easy): 0 + 1? {brief}"
    )
    chat = load("file: rows.jsonl\ntemplate: '{question}'\nsystem: Be brief.\ntask: sums")
    assert chat["prompt"][1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
    ]
    assert set(chat["task"]) == {"sums"}
    assert load("file: rows.jsonl\nprompt: question\nchat: true")["prompt"][0] == [
        {"role": "user", "content": "0 + 1?"}
    ]


def test_a_system_prompt_goes_before_a_chat():
    rows = load("generator: countdown\narguments: {count: 2, seed: 3}\nsystem: Rules.")
    plain = countdown_rows(2, seed=3)
    assert rows["prompt"] == [[{"role": "system", "content": "Rules."}, *row["prompt"]] for row in plain]
    assert rows["nums"] == [row["nums"] for row in plain]


def test_shapes_make_prompts_and_answers(folder):
    (folder / "g.jsonl").write_text(
        json.dumps({"question": "How many?", "answer": "Two and two.\n#### 1,004"})
    )
    found = load("file: g.jsonl\nshape: gsm8k\ninstruction: Be brief.")
    assert found["answer"] == ["1004"] and found["task"] == ["gsm8k"]
    assert found["prompt"][0] == [{"role": "user", "content": "How many?\n\nBe brief."}]


def test_generators_bundled_and_own():
    assert load(
        "generator: countdown\narguments: {count: 3, seed: 1, level: hard}"
    ).to_list() == countdown_rows(3, seed=1, level="hard")
    assert (
        load("generator: mixed\narguments: {counts: {countdown: 2, text: 1}}")["task"].count("countdown") == 2
    )
    assert load("generator: own_rows_of_data:rows\narguments: {count: 2, start: 5}")["n"] == [5, 6]
    assert load("generator: own_rows_of_data:lazy\narguments: {count: 2}")["n"] == [0, 1]


def test_streams_are_read_as_they_are_needed(folder):
    endless = load(
        "generator: own_rows_of_data:endless\narguments: {start: 3}\nstreaming: true\ntask: talk\nlimit: 4"
    )
    assert isinstance(endless, IterableDataset)
    assert list(endless) == [{"prompt": f"say {i}", "task": "talk"} for i in range(3, 7)]
    file = write(folder, ".jsonl")
    assert [r["prompt"] for r in load(f"file: {file}\nprompt: question\nstreaming: true")] == [
        r["question"] for r in ROWS
    ]


def test_a_list_puts_datasets_together_with_none_where_a_column_is_missing(folder):
    write(folder, ".jsonl")
    found = load(
        "- {file: rows.jsonl, prompt: question, chat: true, task: sums}\n- generator: countdown\n  arguments: {count: 2}"
    )
    assert found["task"] == ["sums"] * 5 + ["countdown"] * 2
    assert found["nums"][0] is None and found["answer"][-1] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count: 3", "r.yaml:1: a dataset has one of file, name, generator; this one has none"),
        ("file: a.jsonl\nname: b", "this one has file and name"),
        ("- file: a.jsonl\n- countdown", "r.yaml:2: a dataset is 'countdown'; it must be a mapping"),
        ("[]", "a dataset is empty"),
        ("file: rows.jsonl\nsplt: x", "r.yaml:2: a dataset by file has no 'splt'. It has file, arguments,"),
        ("name: a/b\nconfig: c\nconfg: c", "r.yaml:3: a dataset by name has no 'confg'. Did you mean config"),
        ("file: rows.jsonl\nprompt: question\ntemplate: '{question}'", "r.yaml:3: 'template' and 'prompt' both say"),
        ("file: rows.jsonl\nshape: gsm", "r.yaml:2: there is no shape 'gsm'. Did you mean gsm8k"),
        ("file: rows.jsonl\ninstruction: x", "r.yaml:2: 'instruction' has no effect without 'shape'"),
        ("file: rows.jsonl\nchat: 1", "r.yaml:2: chat is 1; it must be true or false"),
        ("file: rows.jsonl\ntemplate: '{question.__class__}'", "r.yaml:2: the template has {question.__class__}"),
        ("file: rows.jsonl\ntemplate: '{question:>999999999}'", "r.yaml:2: the template has {question:>999999999}; in braces"),
        ("file: rows.jsonl\ntemplate: '{question:{level}}'", "r.yaml:2: the template has {question:{level}}; in braces"),
        ("file: rows.jsonl\ntemplate: '{question!r}'", "r.yaml:2: the template has {question!r}; in braces"),
        ("file: rows.jsonl\ntemplate: '{question'", "r.yaml:2: the template cannot be read"),
        ("file: rows.jsonl\ntemplate: '{questoin}'", "has no column 'questoin'; it has question, answer, level. Did you mean"),
        ("file: rows.jsonl\nprompt: prompts", "r.yaml:2: the dataset has no column 'prompts'"),
        ("file: rows.jsonl\nrename: {a: b}", "r.yaml:2: the dataset has no column 'a'"),
        ("file: rows.jsonl", "r.yaml:1: the dataset has no column 'prompt'; it has question, answer, level. Say which one"),
        ("file: rows.jsonl\nshape: mbpp", "r.yaml:2: A row has the columns answer, level, question"),
        ("file: nothing.jsonl", "r.yaml:1: there is no file 'nothing.jsonl'; looked in "),
        ("file: rows.txt", "r.yaml:1: rows.txt: the files of a dataset are all .jsonl, .json, .csv, .parquet"),
        ("file: [rows.jsonl, rows.csv]", "r.yaml:1: rows.jsonl, rows.csv: the files"),
        ("file: broken.jsonl", "r.yaml:1: broken.jsonl cannot be loaded"),
        ("file: rows.jsonl\nprompt: question\nlimit: 0", "r.yaml:3: limit is 0; it must be a number of rows"),
        ("file: rows.jsonl\nstreaming: 1", "r.yaml:2: streaming is 1"),
        ("generator: countdwn", "r.yaml:1: there is no bundled generator 'countdwn'. Did you mean countdown"),
        ("generator: countdown\narguments:\n  count: 2\n  sed: 1", "r.yaml:4: countdown takes no argument 'sed'. Did you mean seed"),
        ("generator: countdown\narguments:\n  count: 2\n  level: odd", "r.yaml:4: countdown: level is 'odd'"),
        ("generator: countdown", "r.yaml:1: countdown: countdown_rows() missing 1 required"),
        ("generator: own_rows_of_data:nothing", "r.yaml:1: 'own_rows_of_data:nothing' cannot be imported"),
        ("generator: own_rows_of_data:number", "r.yaml:1: own_rows_of_data:number gives rows that make no dataset"),
        ("generator: countdown\nstreaming: true", "r.yaml:2: countdown cannot be streamed"),
        (
            "- {generator: countdown, arguments: {count: 1}}\n- {generator: own_rows_of_data:endless, streaming: true}",
            "r.yaml:2: a stream cannot be put together",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(folder, text, message):
    write(folder, ".jsonl")
    (folder / "rows.csv").write_text("question\nx\n")
    (folder / "rows.txt").write_text("x")
    (folder / "broken.jsonl").write_text("{")
    with pytest.raises((ConfigError, DatasetError)) as error:
        load(text)
    assert message in str(error.value)


def test_what_a_command_line_names_is_said_as_a_recipe_would(folder):
    assert section_of("countdown") == {
        "generator": "countdown",
        "arguments": {"count": 200, "split": "train"},
    }
    assert section_of("code", rows=5, held_out=True)["arguments"] == {"count": 5, "split": "held_out"}
    assert section_of("a/b.jsonl.gz", rows=3, prompt="q") == {
        "file": "a/b.jsonl.gz",
        "limit": 3,
        "prompt": "q",
    }
    assert section_of("m:rows") == {"generator": "m:rows"}
    assert section_of("org/data", held_out=True) == {"name": "org/data", "split": "test"}
    assert section_of("org/data", "dev") == {"name": "org/data", "split": "dev"}
    for name in ("x.csv", "m:rows"):
        with pytest.raises(ConfigError, match="split has no effect"):
            section_of(name, "test")


def test_one_dataset_is_told_from_several_by_name():
    here = Mark("r", 1)
    assert is_one_dataset(node_of({"file": "a.jsonl"}, here)) and is_one_dataset(
        node_of([{"file": "a"}], here)
    )
    assert not is_one_dataset(
        node_of({"file": {"file": "a.jsonl"}, "easy": {"generator": "countdown"}}, here)
    )
