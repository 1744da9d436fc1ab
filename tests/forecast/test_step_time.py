"""Time: a recipe's own steps are measured, and a run's are read from its record."""

import pytest

from covey.cli.planning import time_rows
from covey.errors import CoveyWarning
from covey.forecast.step_time import measure, recorded
from covey.recipes import Recipe
from tests.tiny import tiny_policy


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "policy").mkdir()

    def make(**train):
        sections = {
            "model": tiny_policy(tmp_path / "policy"),
            "data": {"generator": "countdown", "arguments": {"count": 16}},
            "rewards": ["covey.tasks:countdown_reward"],
            "train": {
                "num_generations": 4,
                "per_device_train_batch_size": 8,
                "gradient_accumulation_steps": 2,
                "max_completion_length": 24,
                "max_steps": 50,
                "use_cpu": True,
                **train,
            },
        }
        return Recipe.of(sections, "test")

    return make


def test_a_recipe_is_measured_by_the_trainer_and_nothing_is_left(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = recipe()
    found = measure(asked, asked.plan(), rounds=2)
    assert found.steps == 3 and found.low <= found.seconds <= found.high
    assert set(found.phases) == {"sample", "score", "update"} and min(found.phases.values()) > 0
    assert 1 <= found.mean_tokens <= 24 and 0 <= found.cut_share <= 1 and found.peak_mb > 50
    assert capsys.readouterr().out == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy"]
    assert asked.config.max_steps == 50


def test_steps_that_share_a_round_of_sampling_share_its_seconds(recipe):
    asked = recipe(steps_per_generation=4)
    found = measure(asked, asked.plan(), rounds=1)
    assert found.steps == 4 and found.low == found.seconds == found.high
    assert found.phases["sample"] > 0.001  # half of a round's: every other step samples nothing


def test_a_plan_for_several_processes_is_measured_with_the_share_of_one(recipe):
    asked = recipe(per_device_train_batch_size=2, gradient_accumulation_steps=2)
    plan = asked.plan(ranks=2)
    found = measure(asked, plan, rounds=1)
    assert found.steps == 2 and found.completions == 4 == plan.completions_per_step // 2
    assert "more" not in str(time_rows(found, plan))


def test_a_process_that_had_to_take_more_than_its_share_says_so(recipe):
    asked = recipe(num_generations=4, per_device_train_batch_size=2, gradient_accumulation_steps=1)
    plan = asked.plan(ranks=2)
    with pytest.warns(CoveyWarning, match="gradient_accumulation_steps"):
        found = measure(asked, plan, rounds=1)
    assert "They have 4 completions" in dict(time_rows(found, plan))["measured"]


def test_a_run_without_a_record_is_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        recorded(tmp_path)
