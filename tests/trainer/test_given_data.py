"""What a dataset may be: whatever is taken trains as the plain rows do, whatever is not is refused before the run."""

import json
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDataset

from covey.errors import ConfigError, CoveyWarning, DatasetError, RewardError
from covey.plan import make_plan
from covey.rewards.mixture import as_rewards
from covey.sample.given_data import (
    GivenData,
    Stream,
    as_dataset,
    as_eval_dataset,
    column_names,
    first_row,
    readable,
)
from covey.sample.prompts import PromptReader
from covey.trainer import checks
from covey.trainer.checkpoint.state import RunState
from covey.trainer.data import RolloutStream, ShardedPrompts, are_tasks, task_names
from tests.tiny import CHAT, tiny_model, tiny_policy, tiny_tokenizer
from tests.trainer.harness import Recorder, by_length, chats, logged, make, rows, train

CHATS = chats(4, answer=[1, 2, 3, 4]).to_list()
FORMATS = ["numpy", "torch", "pandas", "arrow", "python", None]


def yields():
    yield from CHATS


TAKEN = {
    "rows": lambda: CHATS,
    "tuple": lambda: tuple(CHATS),
    "dataset": lambda: Dataset.from_list(CHATS),
    "one split": lambda: DatasetDict({"train": Dataset.from_list(CHATS)}),
    "one split of rows": lambda: {"train": CHATS},
    "columns": lambda: {"prompt": [r["prompt"] for r in CHATS], "answer": [r["answer"] for r in CHATS]},
    "frame": lambda: pd.DataFrame(CHATS),
    "arrow": lambda: pa.Table.from_pylist(CHATS),
    "function": lambda: yields,
    "generator": lambda: yields(),
    "stream": lambda: IterableDataset.from_generator(yields),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_taken_has_the_rows_and_the_first_is_not_used_up(kind):
    dataset = as_dataset(TAKEN[kind](), "train_dataset")
    assert first_row(dataset) == CHATS[0] and column_names(dataset, first_row(dataset)) == [
        "prompt",
        "answer",
    ]
    assert list(readable(dataset)) == CHATS
    sets = as_eval_dataset({"a": TAKEN[kind]()})["a"]
    assert list(readable(sets)) == CHATS
    again = as_eval_dataset(TAKEN[kind]())
    again = next(iter(again.values())) if isinstance(again, dict) else again
    assert list(readable(again)) == CHATS == list(readable(again)), "each evaluation reads all rows"


REFUSED = {
    "two splits": (
        DatasetDict({"train": Dataset.from_list(CHATS), "test": Dataset.from_list(CHATS)}),
        "'train', 'test'",
    ),
    "no split": ({}, "nothing"),
    "path": ("data.jsonl", r"load_dataset\('json', data_files='data.jsonl'"),
    "csv": ("some/where.csv", "'csv'"),
    "name": ("openai/gsm8k", r"load_dataset\('openai/gsm8k'"),
    "number": (8, "int 8"),
    "none of rows": (object(), "no rows"),
    "uneven": ({"prompt": ["a", "b"], "x": [1]}, "columns"),
    "other columns": ({"question": ["a"], "answer": ["b"]}, "prompt"),
    "letters": (["ab", "cd"], "Row 0 .*it is str 'ab'"),
    "question": (Dataset.from_dict({"question": ["a"]}), "rename_column"),
    "frame": (pd.DataFrame({"question": ["a"]}), "rename_column"),
    "stream": (IterableDataset.from_generator(lambda: iter([{"question": "a"}])), "rename_column"),
    "empty text": ([{"prompt": "a"}, {"prompt": ""}], "Row 1"),
}


@pytest.mark.parametrize("place", ["train_dataset", "eval_dataset", "eval_dataset['b']"])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_taken_is_refused_by_the_name_of_its_argument(kind, place):
    given, words = REFUSED[kind]
    if place == "eval_dataset" and isinstance(given, dict) and kind != "uneven":
        return  # several evaluation sets by name
    evals = {"b": given} if "b" in place else given
    with pytest.raises(DatasetError, match=words) as told:
        data = GivenData.of(*((given, None) if place == "train_dataset" else (CHATS, evals)))
        checks.check_prompts(data)
    assert place in str(told.value)


def test_the_trainer_refuses_before_it_loads_a_model(tmp_path):
    for sets in (
        (REFUSED["question"][0], None),
        (rows(), REFUSED["question"][0]),
        (rows(), {"a": 5}),
        ("a.csv", None),
    ):
        with pytest.raises(DatasetError):
            make("no/such/model", tmp_path, by_length, sets[0], eval_dataset=sets[1])


@pytest.mark.parametrize("form", FORMATS)
def test_prompts_do_not_depend_on_the_format_and_rewards_see_it(form):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"most": 3}}}]
    plain = Dataset.from_list([{**row, "tools": tools} for row in CHATS])
    read = PromptReader(tiny_tokenizer(template="{{ tools | tojson }}" + CHAT)).read
    prompts = [read(row, n, (n,)) for n, row in enumerate(plain)]
    formatted = readable(plain.with_format(form))
    found = [read(formatted[n], n, (n,)) for n in range(len(formatted))]
    assert [(p.content, p.ids) for p in found] == [(p.content, p.ids) for p in prompts]
    kinds = {"numpy": np.integer, "torch": torch.Tensor}
    assert all(isinstance(p.columns["answer"], kinds.get(form, int)) for p in found)
    streamed = readable(plain.to_iterable_dataset().with_format(form))
    found = [read(row, n, (n,)) for n, row in enumerate(streamed)]
    assert [(p.content, len(p.ids)) for p in found] == [(p.content, len(p.ids)) for p in prompts]


@pytest.mark.parametrize("transform", ["with_transform", "set_transform"])
def test_columns_are_those_that_a_transform_gives(tmp_path, transform):
    dataset = Dataset.from_dict({"q": ["ab", "cd", "ef", "gh"] * 2, "k": ["x", "y"] * 4})
    made = (
        getattr(dataset, transform)(lambda b: {"prompt": b["q"], "answer": b["q"], "task": b["k"]}) or dataset
    )
    assert column_names(made) == ["prompt", "answer", "task"] and task_names(made, "task") == ["x", "y"]

    def gold(completions, answer):
        return [float(len(a) + len(c)) for a, c in zip(answer, completions, strict=True)]

    trainer = train(tiny_policy(tmp_path / "m"), tmp_path, gold, made, eval_dataset=made, max_steps=3)
    assert {f"eval_tasks/{task}/reward" for task in "xy"} <= set(trainer.evaluate())
    keys = [set(entry) for entry in trainer.state.log_history if "loss" in entry]
    assert all({"tasks/x/reward", "tasks/y/reward", "rewards/gold/mean/x"} <= k for k in keys)
    with pytest.raises(RewardError, match=r"'solution'.*train_dataset.*'prompt', 'answer', 'task'"):
        make("no/such/model", tmp_path, lambda completions, solution: [], made)


@pytest.mark.parametrize("where", ["train_dataset", "eval_dataset"])
def test_a_stream_is_known_by_its_first_row(where):
    def accuracy(completions, solution):
        return [0.0] * len(completions)

    stream, whole = IterableDataset.from_generator(yields), [{**row, "solution": "a"} for row in CHATS]
    data = GivenData.of(*((stream, None) if where == "train_dataset" else (whole, stream)))
    with pytest.raises(
        RewardError, match=f"'accuracy' needs 'solution', and {where} has no such column.*'answer'"
    ):
        checks.check_columns(list(as_rewards([accuracy])), data)


# --- streams and workers --------------------------------------------------------------------------------------------------


def plan_of_two():
    return make_plan(group_size=4, micro_batch=8, accumulation=1, max_steps=4)


def rollouts(source, count=3, **reader):
    reader = PromptReader(tiny_tokenizer(), **reader)
    prompts = ShardedPrompts(plan_of_two(), reader, None, 0)
    stream = RolloutStream(readable(as_dataset(source, "train_dataset")), prompts.plan, reader)
    for rows_, _ in zip(stream, range(count), strict=False):
        yield [p.content for own, _ in prompts.rounds(rows_) for p in own]


def numbered(count):
    for number in range(count):
        yield {"prompt": f"say {number}"}


def test_a_function_starts_over_and_a_generator_that_ends_says_so():
    assert list(rollouts(lambda_over(numbered, 3))) == [
        ["say 0", "say 1"],
        ["say 2", "say 0"],
        ["say 1", "say 2"],
    ]
    with pytest.raises(DatasetError, match=r"at its end after 3 rows.*cannot be read again"):
        list(rollouts(numbered(3)))
    with pytest.raises(DatasetError, match="is empty"):
        list(rollouts(numbered(0)))
    with pytest.raises(DatasetError, match=r"none of the 3 rows.*max_prompt_length=2"):
        list(rollouts(lambda_over(numbered, 3), max_length=2, overlong="drop"))


def lambda_over(function, *arguments):
    return Stream(lambda: function(*arguments))


def test_a_torch_stream_with_a_length_is_a_stream():
    class Counted(torch.utils.data.IterableDataset):
        def __len__(self):
            return 3

        def __iter__(self):
            return numbered(3)

    assert next(rollouts(Counted())) == ["say 0", "say 1"] and first_row(Counted()) == {"prompt": "say 0"}


def test_a_stream_is_read_by_one_process_and_rows_by_workers(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    stream = IterableDataset.from_generator(yields)
    with pytest.warns(CoveyWarning, match="dataloader_num_workers=2 becomes 0.*stream"):
        streamed = make(folder, tmp_path, by_length, stream, dataloader_num_workers=2)
    assert streamed.args.dataloader_num_workers == 0
    assert streamed.get_train_dataloader().num_workers == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoveyWarning)
        made = make(folder, tmp_path, by_length, CHATS, eval_dataset=stream, dataloader_num_workers=2)
    assert made.get_train_dataloader().num_workers == 2
    for setting in ("dispatch_batches", "split_batches"):
        with pytest.raises(ConfigError, match=f"{setting}=True, which has no effect"):
            make(folder, tmp_path, by_length, stream, accelerator_config={setting: True})


# --- rows that cannot be used ---------------------------------------------------------------------------------------------

REFUSING = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}" + CHAT


def with_a_bad_row(count, bad):
    data = chats(count).to_list()
    data[bad]["prompt"] = [{"role": "system", "content": "be"}, *data[bad]["prompt"]]
    return data


def test_a_row_that_the_template_refuses_is_found_before_the_run(tmp_path):
    tokenizer = tiny_tokenizer(template=REFUSING)
    for sets in (
        (with_a_bad_row(8, 5), None),
        (chats(), with_a_bad_row(8, 5)),
        (chats(), {"a": with_a_bad_row(8, 5)}),
    ):
        with pytest.raises(DatasetError, match=r"(train|eval)_dataset.*Row 5.*no system here"):
            make(tiny_model(), tmp_path, by_length, sets[0], eval_dataset=sets[1], processing_class=tokenizer)
    with pytest.raises(DatasetError, match="chat template"):
        make(tiny_model(), tmp_path, by_length, chats(), processing_class=tiny_tokenizer(template="{% if %}"))


@pytest.mark.parametrize("where", ["rows", "stream", "evaluation", "stream that drops"])
def test_a_row_that_is_found_in_the_middle_costs_no_step(tmp_path, monkeypatch, where):
    monkeypatch.setattr(checks, "MOST_RENDERED", 0)
    bad, good = with_a_bad_row(8, 5), chats().to_list()
    dataset = {"evaluation": good, "rows": bad}.get(where, Stream(lambda: iter(bad)))
    more = dict(eval_dataset=bad, eval_strategy="steps", eval_steps=2) if where == "evaluation" else {}
    more |= dict(max_prompt_length=90, overlong_prompts="drop") if where.endswith("drops") else {}
    trainer = make(
        tiny_model(), tmp_path, by_length, dataset, processing_class=tiny_tokenizer(template=REFUSING), max_steps=6,
        shuffle_dataset=False, **more,
    )  # fmt: skip
    with pytest.raises(DatasetError, match=r"Row 5.*no system here.*The run is saved in .*checkpoint-2"):
        trainer.train()
    assert (tmp_path / "checkpoint-2").is_dir() and trainer.state.global_step == 2


class Fragile:
    """Rows by number of which one cannot be read."""

    def __init__(self, bad):
        self.rows, self.bad = chats().to_list(), bad

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        if number == self.bad:
            raise OSError("no such picture")
        return self.rows[number]


def transformed(bad):
    def transform(batch):
        if batch["prompt"][0] == chats()[bad]["prompt"]:
            raise OSError("no such picture")
        return batch

    return chats().with_transform(transform)


def yielding(bad):
    def rows_until_there():
        rows = Fragile(bad)
        yield from (rows[number] for number in range(len(rows)))

    return rows_until_there


FRAGILE = {
    "by number": Fragile,
    "transform": transformed,
    "function": yielding,
    "generator": lambda bad: yielding(bad)(),
    "stream": lambda bad: IterableDataset.from_generator(yielding(bad)),
}
SAID = "reading it raised OSError: no such picture"


@pytest.mark.parametrize("kind", FRAGILE)
@pytest.mark.parametrize("place", ["train_dataset", "eval_dataset"])
def test_a_row_that_cannot_be_read_is_named_before_the_run(kind, place, tmp_path):
    """Where rows have numbers, and the first row of any dataset."""
    bad = 5 if kind in ("by number", "transform") or (kind, place) == ("generator", "eval_dataset") else 0
    data = {"train_dataset": chats(), "eval_dataset": None} | {place: FRAGILE[kind](bad)}
    with pytest.raises(DatasetError, match=f"Row {bad}: {SAID}"):
        make(
            tiny_model(), tmp_path, by_length, data["train_dataset"], eval_dataset=data["eval_dataset"],
            processing_class=tiny_tokenizer(),
        )  # fmt: skip


@pytest.mark.parametrize(("kind", "more"), [*((k, {}) for k in FRAGILE), ("by number", {"workers": 1})])
@pytest.mark.parametrize("place", ["train_dataset", "eval_dataset"])
def test_a_row_that_cannot_be_read_in_the_middle_costs_no_step(kind, more, place, tmp_path, monkeypatch):
    if (kind, place) == ("generator", "eval_dataset"):
        pytest.skip("it is read to its end before the run")
    monkeypatch.setattr(checks, "MOST_RENDERED", 0)
    data = {"train_dataset": chats(), "eval_dataset": None} | {place: FRAGILE[kind](5)}
    evaluates = dict(eval_strategy="steps", eval_steps=2) if place == "eval_dataset" else {}
    trainer = make(
        tiny_model(), tmp_path, by_length, data["train_dataset"], eval_dataset=data["eval_dataset"],
        processing_class=tiny_tokenizer(), max_steps=6, shuffle_dataset=False,
        dataloader_num_workers=more.get("workers", 0), **evaluates,
    )  # fmt: skip
    with pytest.raises(DatasetError, match=rf"Row 5: {SAID}.*The run is saved in .*checkpoint-2"):
        trainer.train()
    assert (tmp_path / "checkpoint-2").is_dir() and trainer.state.global_step == 2


def test_an_evaluation_outside_of_training_saves_nothing(tmp_path):
    trainer = train(
        tiny_model(), tmp_path, by_length, chats(), processing_class=tiny_tokenizer(template=REFUSING)
    )
    with pytest.raises(DatasetError, match=r"Row 5.*no system here"):
        trainer.evaluate(with_a_bad_row(8, 5))
    assert not list(tmp_path.glob("checkpoint-*"))
    for wrong in ("rows.csv", 5):
        with pytest.raises(DatasetError, match="eval_dataset"):
            trainer.evaluate(wrong)


# --- columns, turns, tasks, dates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [*checks.SENSES, *checks.ANSWERS])
@pytest.mark.parametrize("where", ["train_dataset", "eval_dataset"])
def test_a_column_with_a_meaning_is_named_once_unless_a_reward_reads_it(column, where):
    marked = [{**row, column: "x"} for row in CHATS]
    data = GivenData.of(*((marked, None) if where == "train_dataset" else (CHATS, marked)))
    with pytest.warns(CoveyWarning, match=f"{where} has the column '{column}'") as told:
        checks.check_columns(list(as_rewards([lambda completions, **_: []])), data)
    assert len(told) == 1
    reads: dict[str, object] = {}
    exec(f"def reads(completions, {column}): return []", reads)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoveyWarning)
        checks.check_columns(list(as_rewards([reads["reads"]])), GivenData.of(marked, None))


def test_tools_beside_plain_text_are_named():
    with pytest.warns(CoveyWarning, match="'tools'.*plain text"):
        checks.check_columns([], GivenData.of([{"prompt": "a", "tools": [{"name": "f"}]}], None))


def test_a_template_that_closes_answers_with_no_end_is_named_with_the_setting(tmp_path):
    tokenizer = tiny_tokenizer(template=CHAT.replace("<eos>", "<stop>"))
    with pytest.warns(CoveyWarning, match=r"'<stop>'.*'<eos>'.*\"eos_token_id\": \[3\]"):
        make(tiny_model(), tmp_path, by_length, chats(), processing_class=tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoveyWarning)
        make(
            tiny_model(),
            tmp_path,
            by_length,
            chats(),
            processing_class=tokenizer,
            generation_kwargs={"eos_token_id": [3]},
        )
        make(tiny_model(), tmp_path, by_length, rows(), processing_class=tokenizer)
        make(tiny_model(), tmp_path, by_length, chats(), processing_class=tiny_tokenizer())


@pytest.mark.parametrize(
    "names, count, are",
    [
        (2, 2, True),
        (4, 4, True),
        (5, 8, False),
        (8, 8, False),
        (5, 10, True),
        (100, 1000, True),
        (101, 1000, False),
    ],
)
def test_names_are_tasks_where_they_group_rows(names, count, are):
    assert are_tasks(names, count) == are


@pytest.mark.parametrize("named_by_a_reward", [False, True])
def test_sentences_are_no_tasks_in_training_evaluation_and_record(tmp_path, named_by_a_reward):
    sentences = [f"sum number {i}, please" for i in range(8)]
    column, tasks = "", []
    if named_by_a_reward:
        assert checks.known_tasks(rows(task=sentences), "task", {sentences[0]}) == ("task", tasks)
        return
    with pytest.warns(CoveyWarning, match="'task'.*task_column"):
        trainer = make(
            tiny_policy(tmp_path / "m"),
            tmp_path,
            by_length,
            rows(task=sentences),
            eval_dataset=rows(task=sentences),
        )
    assert trainer.run_log.task_column == column
    trainer.train()
    trainer.evaluate()
    assert not any("please" in key for entry in trainer.state.log_history for key in entry)
    assert "please" not in (tmp_path / "record" / "group_statistics.jsonl").read_text()


def test_the_date_of_the_start_is_kept_over_a_checkpoint(tmp_path):
    dated = tiny_tokenizer(template="{{ strftime_now('%d %m %Y') }}" + CHAT)
    settings = dict(processing_class=dated, max_steps=4, save_strategy="steps", save_steps=2)
    reward = Recorder(lambda ids: [float(sum(i) % 7) for i in ids])
    first = train(tiny_model(), tmp_path, reward, chats(), **settings)
    start = first.prompts.reader.clock.start

    again = make(tiny_model(), tmp_path, reward, chats(), eval_dataset=chats(), **settings)
    again.prompts.reader.clock.start = start.replace(year=start.year + 1)
    before = again.prompts.reader.read(chats()[0], 0, (0,)).ids
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    after = again.prompts.reader.read(chats()[0], 0, (0,)).ids
    assert before != after and str(start.year) in dated.decode(after)
    assert logged(again, "reward")[-2:] == logged(first, "reward")[-2:]
    for (name, a), b in zip(first.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert isinstance(again.run_state(), RunState)
    assert json.loads((tmp_path / "checkpoint-2" / "covey" / "run0.json").read_text())["clock"]
