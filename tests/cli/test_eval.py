"""`covey eval`: the trainer's numbers for any model folder, and a paired test between two of them."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.cli import main
from covey.recipes import Recipe
from covey.runs.statistics import bootstrap_interval, paired_test, pass_at_k
from tests.tiny import tiny_policy

ENDS = {"eos_token_id": [2, *range(30, 42)]}


def evaluated(capsys, *words, status=0):
    assert main(["eval", *map(str, words), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def row(found, name="short", task=None, eval_set="eval"):
    [match] = [r for r in found["sets"][eval_set]["rows"] if (r["name"], r["task"]) == (name, task)]
    return match


@pytest.fixture
def other(recipe, tmp_path):
    """A policy that seldom ends a completion early: the reward of the recipe is low for it."""
    return tiny_policy(tmp_path / "other", generation={"eos_token_id": [2]}, seed=5)


def test_the_numbers_are_those_of_the_trainer_and_of_the_statistics(recipe, capsys, tmp_path):
    found = evaluated(capsys, "policy", recipe, "--samples", 4, "-o", "kept.json")
    metrics = found["sets"]["eval"]["metrics"]
    kept = json.loads((tmp_path / "kept.json").read_text())["sets"]["eval"]
    values = kept["values"]["short"]
    means = [sum(v) / len(v) for v in values]
    assert len(values) == 8 and all(len(v) == 4 for v in values) and len(set(means)) > 1
    whole, interval = row(found), bootstrap_interval(means)
    assert whole["interval"]["estimate"] == pytest.approx(metrics["rewards/short/mean"])
    assert (whole["interval"]["low"], whole["interval"]["high"]) == (interval.low, interval.high)
    expected = {str(k): sum(pass_at_k(4, int(sum(v)), k) for v in values) / 8 for k in (1, 2, 4)}
    assert whole["pass_at"] == pytest.approx(expected)
    assert row(found, task="odd")["prompts"] == 4
    odd = [m for m, task in zip(means, kept["tasks"], strict=True) if task == "odd"]
    assert row(found, task="odd")["interval"]["estimate"] == pytest.approx(sum(odd) / 4)


def test_a_recipe_is_evaluated_with_its_own_settings_and_options_replace_them(recipe, capsys):
    found = evaluated(capsys, "policy", recipe)
    trainer = Recipe.load(recipe, ["report_to=none", "record=false"]).trainer()
    expected = {k.removeprefix("eval_"): v for k, v in trainer.evaluate().items()}
    same = {name: v for name, v in found["sets"]["eval"]["metrics"].items() if "time" not in name}
    capsys.readouterr()
    assert {n: v for n, v in same.items() if n != "samples_per_second"} == {
        n: v for n, v in expected.items() if n in same and n != "samples_per_second"
    }
    greedy = evaluated(capsys, "policy", recipe, "--greedy", "--samples", 2, "-o", "greedy.json")
    assert row(greedy)["pass_at"]["1"] == row(greedy)["pass_at"]["2"]
    assert all(a == b for a, b in json.loads(Path("greedy.json").read_text())["sets"]["eval"]["completions"])


def test_two_policies_on_the_same_prompts(recipe, capsys, other):
    options = ("rows.jsonl", "--reward", "rewards_of_the_cli:short", "--max-tokens", 8, "--samples", 1)
    before, after = verdicts(capsys, other, options), verdicts(capsys, "policy", options)
    expected = paired_test(before, after)
    assert expected.better > expected.worse
    found = evaluated(capsys, "policy", *options, "--against", other)
    [change] = [c for c in found["changes"]["eval"] if c["name"] == "short" and c["task"] is None]
    assert (change["before"], change["after"]) == (sum(before) / 8, sum(after) / 8)
    assert change["test"] == asdict(expected) and expected.method == "mcnemar"
    odd = [c for c in found["changes"]["eval"] if c["name"] == "short" and c["task"] == "odd"]
    assert odd[0]["test"] == asdict(paired_test(before[1::2], after[1::2]))


def verdicts(capsys, model, options):
    """The one value of each prompt."""
    evaluated(capsys, model, *options, "-o", "verdicts.json")
    return [v for [v] in json.loads(Path("verdicts.json").read_text())["sets"]["eval"]["values"]["short"]]


def test_a_policy_that_is_worse_is_status_1_and_numbers_can_be_kept(recipe, capsys, other):
    options = ("rows.jsonl", "--reward", "rewards_of_the_cli:short", "--max-tokens", "8", "--samples", "8")
    assert main(["eval", "policy", *options, "-o", "before.json"]) == 0
    assert main(["eval", other, *options, "--against", "before.json"]) == 1
    shown = capsys.readouterr().out
    assert "before.json → " in shown and "permutation" in shown and "avg@8" in shown and "pass@8" in shown
    assert main(["eval", "policy", *options, "--against", "before.json"]) == 0


def test_an_adapter_and_its_merged_model_are_worth_the_same(recipe, tmp_path, capsys):
    lora = [
        "use_peft=true",
        "lora_r=4",
        "lora_target_modules=all-linear",
        "output_dir=lora",
        "learning_rate=0.1",
    ]
    assert main(["train", str(recipe), "--set", *lora]) == 0
    assert "covey merge lora/model lora/merged" in capsys.readouterr().out
    assert main(["merge", "lora/model", "lora/merged"]) == 0
    capsys.readouterr()
    adapter = evaluated(capsys, "lora/model", recipe, "--samples", 4)
    merged = evaluated(capsys, "lora/merged", recipe, "--samples", 4)
    base = evaluated(capsys, "policy", recipe, "--samples", 4)
    assert row(adapter) == row(merged) != row(base)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["policy", "rows.jsonl"], "No reward to measure with. Add --reward NAME"),
        (
            ["policy", "recipe.yaml", "--rows", "3"],
            "--rows has no effect: recipe.yaml says its own eval sets",
        ),
        (["nowhere", "recipe.yaml"], "nowhere"),
        (["policy", "rows.jsonl", "--reward", "NoSuch"], "there is no bundled reward 'NoSuch'"),
        (["policy", "rows.jsonl", "--reward", "ThinkFormat", "--split", "test"], "a split has no effect"),
        (["policy", "recipe.yaml", "--against", "rows.jsonl.json"], "is no result of 'covey eval -o'"),
        (["policy", "recipe.yaml", "--set", "eval="], "has no eval sets"),
    ],
)
def test_wrong_input_is_status_2(recipe, capsys, words, message):
    assert main(["eval", *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown


def test_other_prompts_cannot_be_compared(recipe, capsys):
    options = ["--reward", "rewards_of_the_cli:short", "--max-tokens", "8"]
    assert main(["eval", "policy", "rows.jsonl", *options, "--rows", "5", "-o", "five.json"]) == 0
    assert main(["eval", "policy", "rows.jsonl", *options, "--against", "five.json"]) == 2
    assert "5 prompts here, 8 there" in capsys.readouterr().err


def test_evaluating_changes_no_file_of_the_model(recipe, tmp_path, capsys):
    before = {p.name: p.read_bytes() for p in (tmp_path / "policy").iterdir()}
    evaluated(capsys, "policy", recipe)
    assert {p.name: p.read_bytes() for p in (tmp_path / "policy").iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir() and p.name != "__pycache__") == ["policy"]


def test_the_weights_of_the_folder_are_the_ones_that_answer(recipe, tmp_path, capsys):
    def said():
        evaluated(capsys, "policy", recipe, "-o", "said.json")
        return json.loads(Path("said.json").read_text())["sets"]["eval"]["completions"]

    before, path = said(), tmp_path / "policy" / "model.safetensors"
    assert said() == before
    save_file({n: torch.zeros_like(t) for n, t in load_file(path).items()}, path, {"format": "pt"})
    assert said() != before
