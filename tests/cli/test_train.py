"""`covey train`: a run from one file, the same run from what it left behind, going on, and every mistake with its line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import covey.runs
from covey.cli import main
from covey.cli.verbs.train import print_end
from tests.clocks import PATIENCE


def weights(folder):
    return load_file(folder / "model.safetensors")


def are_equal(first, second):
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_leaves_a_model_a_record_and_the_recipe_that_it_was(recipe, tmp_path, capsys):
    assert main(["train", str(recipe), "--set", "seed=7", "output_dir=out"]) == 0
    shown = capsys.readouterr().out
    assert "covey eval out/model out/recipe.yaml" in shown and "reward  0." in shown
    assert covey.runs.open(tmp_path / "out").state == "finished"
    said = (tmp_path / "out" / "recipe.yaml").read_text()
    assert said.startswith(f"# covey train {recipe} --set seed=7 output_dir=out\n")
    assert main(["train", "out/recipe.yaml", "--set", "output_dir=again"]) == 0
    assert are_equal(tmp_path / "out" / "model", tmp_path / "again" / "model")
    assert main(["train", str(recipe), "--set", "output_dir=other"]) == 0
    assert not are_equal(tmp_path / "out" / "model", tmp_path / "other" / "model")


def test_resume_goes_on_and_ends_where_a_run_without_a_stop_does(recipe, tmp_path, capsys):
    assert main(["train", str(recipe), "--set", "output_dir=whole", "max_steps=3"]) == 0
    assert main(["train", str(recipe), "--resume", "auto", "--set", "output_dir=parts", "max_steps=2"]) == 0
    assert main(["train", str(recipe), "--resume", "auto", "--set", "output_dir=parts", "max_steps=3"]) == 0
    assert are_equal(tmp_path / "whole" / "model", tmp_path / "parts" / "model")
    assert not (tmp_path / "parts" / "checkpoint-4").exists()
    assert main(["train", str(recipe), "--resume", "whole/checkpoint-1", "--set", "output_dir=from"]) == 0
    assert sorted(p.name for p in (tmp_path / "from").glob("checkpoint-*")) == ["checkpoint-2"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("learning_rate", "lerning_rate", "recipe.yaml:9: GRPOConfig has no setting 'lerning_rate'. Did you mean"),
        ("max_steps: 2", "max_steps: two", "recipe.yaml:11: max_steps is 'two'; it must be a whole number."),
        ("use_cpu: true", "beta: -1", "recipe.yaml:22: beta is -1"),
        ("rows.jsonl\neval", "nowhere.jsonl\neval", "recipe.yaml:3: there is no file 'nowhere.jsonl'"),
        ("_cli:short", "_cli:long", "recipe.yaml:7: 'rewards_of_the_cli:long' cannot be imported"),
        ("model: policy", "model: nowhere", "cannot be loaded"),
        ("rewards:", "mistake: 1\nrewards:", "recipe.yaml:6: a recipe has no section 'mistake'"),
        ("data:", "data", "recipe.yaml:3: "),
    ],
)  # fmt: skip
def test_wrong_input_is_status_2_with_its_line(recipe, capsys, old, new, message):
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new, 1))
    assert main(["train", str(recipe)]) == 2
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown


def test_a_wrong_value_of_the_command_line_is_named_by_its_path(recipe, capsys):
    assert main(["train", str(recipe), "--set", "train.max_steps=two"]) == 2
    assert "--set train.max_steps: max_steps is 'two'" in capsys.readouterr().err


def test_a_reward_that_raises_is_shown_with_the_users_own_traceback(recipe, capsys):
    assert main(["train", str(recipe), "--set", "rewards.0.reward=rewards_of_the_cli:broken"]) == 2
    shown = capsys.readouterr().err
    assert "rewards_of_the_cli.py" in shown and "ZeroDivisionError: by me" in shown
    assert "--set rewards.0.reward: " in shown or "recipe.yaml:7: " in shown


def test_what_nobody_foresaw_is_status_3_with_a_traceback(recipe, capsys, monkeypatch):
    monkeypatch.setattr("covey.recipes.Recipe.trainer", lambda self: 1 / 0)
    assert main(["train", str(recipe)]) == 3
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_ctrl_c_is_status_130(recipe, tmp_path):
    command = [sys.executable, "-m", "covey", "train", str(recipe), "--set", "max_steps=100000"]
    command += ["save_strategy=no", "output_dir=stopped", "eval_strategy=no"]
    root = str(Path(covey.__file__).parents[1])
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": root},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a job in the background
    )
    steps = tmp_path / "stopped" / "record" / "steps.jsonl"
    try:
        deadline = time.monotonic() + 3_600  # imports alone take minutes where many tests run at once
        while not steps.exists() or not steps.stat().st_size:
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=PATIENCE) == 130
    finally:
        child.kill()
    assert covey.runs.open(tmp_path / "stopped").state == "interrupted"


def test_settings_are_listed_by_word_without_a_recipe(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--settings", "entropy_coef"])
    assert end.value.code == 0
    assert "  entropy_coef: 0.0   # a number" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["train", "--settings", "no such word"])
    assert end.value.code == 2


def test_the_same_numbers_are_one_line_at_the_end(capsys, tmp_path):
    numbers = {"": 0.5, "/low": 0.4, "/high": 0.6}
    metrics = {f"eval_sum_{n}{end}": v for n in ("reward", "rewards/right") for end, v in numbers.items()}
    metrics |= {"eval_other_reward": 0.5, "eval_other_reward/low": 0.3, "eval_other_reward/high": 0.6}
    recipe = SimpleNamespace(eval_dataset=None, model_config=SimpleNamespace(use_peft=False))
    print_end(recipe, metrics, tmp_path)
    shown = capsys.readouterr().out.partition("intervals:\n")[2].splitlines()
    assert shown[0] == "  sum_reward = sum_rewards/right  0.500 [0.400, 0.600]"
    assert shown[1] == "  other_reward  0.500 [0.300, 0.600]"
