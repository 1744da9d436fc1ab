"""One dataset of three tasks, and rewards that keep to their own rows."""

from collections import Counter

import pytest

from covey.errors import DatasetError
from covey.rewards import Reward, RewardBatch
from covey.tasks import ForTask, code_reward, countdown_reward, mixed_rows
from covey.tasks.mixture import COLUMNS

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
    rewards = {"countdown": countdown_reward, "code": code_reward, "text": ForTask("text", length)}

    for task, function in rewards.items():
        scores = function(prompts=batch.prompts, completions=batch.completions, **batch.columns)
        assert [score is not None for score in scores] == [row["task"] == task for row in ROWS]


def test_a_routed_reward_sees_its_own_rows_alone_and_in_order():
    seen = []

    def spy(prompts, completions):
        seen.append((prompts, completions))
        return [10.0, 20.0]

    routed = ForTask("text", spy)
    tasks = ["code", "text", None, "text"]

    scores = routed(prompts=list("abcd"), completions=list("wxyz"), task=tasks, target=[1, 2, 3, 4])

    assert scores == [None, 10.0, None, 20.0]
    assert seen == [(["b", "d"], ["x", "z"])]


def test_a_routed_reward_is_not_called_without_rows():
    def fails(prompts, completions):
        raise AssertionError("called")

    assert ForTask("text", fails)(prompts=["p"], completions=["c"], task=["code"]) == [None]


def test_a_routed_reward_names_itself_and_its_column():
    reward = Reward(ForTask("text", len), "text_reward")

    assert ForTask("text", len).__name__ == "text_reward"
    assert reward.missing_columns(["nums"]) == ["task"]
