"""`covey plan`: what a recipe means, before anything runs."""

import json

import pytest

from covey.cli import main


def planned(capsys, *words):
    assert main(["plan", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_plan_is_the_arithmetic_of_the_trainer(recipe, capsys):
    # 8 completions per micro-batch, 4 per prompt: 2 prompts per step; 8 rows give 4 steps per epoch.
    found = planned(capsys, recipe)
    assert found["plan"]["prompts per optimizer step"] == 2
    assert found["plan"]["steps per epoch"] == 4
    assert found["data"] == {
        key: {"rows": 8, "tasks": {"even": 4, "odd": 4}} for key in ("training", "evaluation")
    }
    assert found["rewards"]["short"]["weight"] == 1.0 and found["settings"]["learning_rate"] == 0.01
    four = planned(capsys, recipe, "--processes", 4)
    assert four["plan"]["prompts per optimizer step"] == 8


def texts(value):
    if isinstance(value, dict):
        return [text for inner in value.values() for text in texts(inner)]
    return [text for inner in value for text in texts(inner)] if isinstance(value, list) else [value]


def test_no_number_is_a_text_for_machines(recipe, capsys):
    """Only settings that are texts are texts, and names of rewards' terms."""
    found = planned(capsys, recipe, "--gpu", 24, "--measure", 2)
    assert found["verdict"]["fits"] > 0 and found["memory"]["while it updates"] > 1e6
    for section in ("plan", "data", "memory", "time", "verdict"):
        numbers = [v for v in texts(found[section]) if v not in ("cpu", None)]
        assert numbers and all(isinstance(v, int | float) for v in numbers), (section, numbers)
    held = [v for v in found["settings"].values() if isinstance(v, str)]
    assert not [v for v in held if v.replace(".", "").replace("e-", "").isdigit()]


def test_rows_stand_for_data_that_is_not_loaded(recipe, tmp_path, capsys):
    (tmp_path / "rows.jsonl").unlink()
    found = planned(capsys, recipe, "--rows", 1000, "--set", "max_steps=-1", "num_train_epochs=2")
    assert found["plan"]["optimizer steps in total"] == 1000
    assert main(["plan", str(recipe)]) == 2
    assert "recipe.yaml:3: there is no file 'rows.jsonl'" in capsys.readouterr().err


def test_rewards_are_shown_with_weight_tasks_and_gates(recipe, capsys):
    text = recipe.read_text()
    more = "  - reward: ThinkFormat\n    tasks: odd\n    weight: {schedule: linear, start: 1, end: 0}\n    requires: short\n"
    recipe.write_text(text.replace("train:", f"{more}train:"))
    found = planned(capsys, recipe)["rewards"]["think_format"]
    assert found["weight"] == [1.0, 0.0] and found["tasks"] == ["odd"] and found["requires"] == ["short"]
    assert main(["plan", str(recipe)]) == 0
    assert "weight 1 → 0; tasks odd; after short" in capsys.readouterr().out


def test_a_bound_is_shown_in_place_of_a_weight(recipe, capsys):
    text = recipe.read_text()
    recipe.write_text(text.replace("train:", "  - reward: ThinkFormat\n    at_least: 0.95\ntrain:"))
    found = planned(capsys, recipe)["rewards"]["think_format"]
    assert (found["at_least"], found["at_most"], found["weight"]) == (0.95, None, 0.0)
    assert main(["plan", str(recipe)]) == 0
    assert "mean at least 0.95, by a multiplier of 0 to 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("generation_batch_size=9", "generation_batch_size is 9; it must be a multiple"),
        ("num_generations=1", "num_generations"),
        ("reward_weights=[1, 2]", "reward_weights has 2 weights for 1 rewards"),
        ("rewards=[SameAnswer]", "and train_dataset has no such column"),
    ],
)
def test_a_run_that_cannot_be_is_status_2(recipe, capsys, change, message):
    assert main(["plan", str(recipe), "--set", change]) == 2
    assert message in capsys.readouterr().err


def test_a_number_of_measured_steps_is_one_or_more(recipe, capsys):
    for steps in ("0", "-1"):
        assert main(["plan", str(recipe), "--measure", steps]) == 2
        assert f"--measure is {steps}" in capsys.readouterr().err


def test_memory_is_reckoned_and_a_model_that_is_not_there_does_not_stop_a_plan(recipe, capsys):
    found = planned(capsys, recipe)["memory"]
    assert "while it updates" in found and found["tokens per completion"] == 8
    found = planned(capsys, recipe, "--set", "model=no/such-model")
    assert "the tokenizer of" in found["memory"]["not reckoned"].lower()
    assert found["plan"]["optimizer steps in total"] == 2


def test_what_was_foreseen_stands_beside_what_came(recipe, capsys):
    assert main(["train", str(recipe), "--set", "output_dir=out"]) == 0
    capsys.readouterr()
    found = planned(capsys, "out", "--measure", 5)
    assert found["settings"]["output_dir"] == "out"
    assert found["time"]["run"] > 0.0
    came = found["what came of it"]
    assert (
        came["run"] == {"folder": "out", "steps": 2}
        and came["step"]["foreseen"] > 0
        and came["memory"]["foreseen"] > 0
    )
    assert main(["plan", str(recipe), "--against", "out"]) == 0
    assert "at that length" in capsys.readouterr().out


MEASURED = "a start from what was measured"


def test_a_recipe_near_what_was_measured_is_shown_no_other_start(capsys):
    assert MEASURED not in planned(capsys, "tiny")
    assert main(["plan", "tiny"]) == 0
    assert MEASURED not in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    ("words", "times", "start", "source"),
    [
        (["tiny", "--set", "learning_rate=0.1"], 100.0, 3e-4, "as bundled (1.14 million weights, full"),
        (["discs", "--set", "learning_rate=1e-6"], 1 / 200, 1e-3, "as bundled_discs (0.292 million weights"),
        (
            ["tiny", "--set", "use_peft=true", "lora_target_modules=all-linear", "learning_rate=1e-2"],
            100.0,
            1e-4,
            "as Qwen2.5-Coder-0.5B-Instruct (494 million weights, an adapter)",
        ),
    ],
)
def test_a_setting_far_from_what_was_measured_has_a_start_and_a_source(words, times, start, source, capsys):
    """The most of 0.3 to 1.1 million weights is 1e-3, the least 2e-4; of an adapter the nearest is 1e-4."""
    (found,) = planned(capsys, *words)[MEASURED].items()
    assert found[0] == "learning_rate" and found[1]["times"] == pytest.approx(times)
    assert found[1]["start"] == start and found[1]["value"] != start
    assert main(["plan", *words]) == 0
    shown = capsys.readouterr().out
    assert "A start from what was measured\n  learning_rate  " in shown and source in shown


def test_nothing_is_compared_where_the_size_of_the_model_is_not_known(recipe, capsys):
    assert MEASURED in planned(capsys, recipe)
    assert MEASURED not in planned(capsys, recipe, "--set", "model=no/such-model")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipe.yaml", "--against", "policy"], "No run record at policy"),
        (["policy"], "policy/recipe.yaml cannot be read"),
        (["recipe.yaml", "--measure", "--rows", "9"], "Give one of the two"),
    ],
)
def test_a_run_that_is_not_there_is_status_2(recipe, capsys, words, message):
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err
