"""One dataset of three tasks, and rewards that keep to their own rows."""

from collections import Counter

import pytest

from covey.errors import DatasetError
from covey.rewards import Mixture, RewardBatch, reward
from covey.tasks import code_reward, countdown_reward, mixed_rows, quickstart_run
from covey.tasks.mixed import COLUMNS

ROWS = mixed_rows({"countdown": 20, "code": 15, "text": 10}, seed=5)


def test_all_rows_have_all_columns_and_every_task_its_count():
    assert {tuple(row) for row in ROWS} == {COLUMNS}
    assert Counter(row["task"] for row in ROWS) == {"countdown": 20, "code": 15, "text": 10}
    assert all((row["nums"] is None) == (row["task"] != "countdown") for row in ROWS)
    assert all((row["tests"] is None) == (row["task"] != "code") for row in ROWS)
    assert all((row["topics"] is None) == (row["task"] != "text") for row in ROWS)


def test_the_mixture_is_shuffled_by_its_seed():
    counts = {"countdown": 20, "code": 15, "text": 10}

    assert mixed_rows(counts, seed=5) == ROWS
    assert [row["task"] for row in mixed_rows(counts, seed=6)] != [row["task"] for row in ROWS]


def test_an_unknown_task_is_named():
    with pytest.raises(DatasetError, match="No task 'poetry'"):
        mixed_rows({"poetry": 1})


def test_each_row_is_scored_by_exactly_one_reward():
    def length(prompts, completions):
        return [float(len(c)) for c in completions]

    batch = RewardBatch(
        prompts=[row["prompt"] for row in ROWS],
        completions=["a sentence"] * len(ROWS),
        columns={name: [row[name] for row in ROWS] for name in COLUMNS if name != "prompt"},
    )
    rewards = {"countdown": countdown_reward, "code": code_reward, "text": reward(length, tasks="text")}

    table = Mixture(*rewards.values()).score(batch)
    for task, function in rewards.items():
        values = [score.value for score in table.scores[function.__name__]]
        assert [value is not None for value in values] == [row["task"] == task for row in ROWS]


def test_a_routed_reward_sees_its_own_rows_alone_and_in_order():
    seen = []

    def spy(prompts, completions):
        seen.append((prompts, completions))
        return [10.0, 20.0]

    tasks = ["code", "text", None, "text"]
    batch = RewardBatch(list("abcd"), list("wxyz"), columns={"task": tasks, "target": [1, 2, 3, 4]})

    table = Mixture(reward(spy, tasks="text")).score(batch)

    assert [score.value for score in table.scores["spy"]] == [None, 10.0, None, 20.0]
    assert seen == [(["b", "d"], ["x", "z"])]


def test_a_routed_reward_is_not_called_without_rows():
    def fails(prompts, completions):
        raise AssertionError("called")

    batch = RewardBatch(["p"], ["c"], columns={"task": ["code"]})

    assert Mixture(reward(fails, tasks="text")).score(batch).scores["fails"][0].value is None


def test_the_quickstarts_text_reward_names_itself_and_its_rows():
    text_reward = quickstart_run.text_reward(lambda completions: [1.0] * len(completions))

    assert text_reward.name == "text_reward"
    assert text_reward.options.tasks == {"text"}
