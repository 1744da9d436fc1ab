"""Names of bundled recipes and policies mean the same for every verb."""

import json

import pytest

from covey.cli import main
from covey.tasks import disc_rows

STORY = "Ida has 82 boxes of 33 stamps and gets 79 more stamps. How many stamps?"
TOOL = "covey.tasks.calculator:calculator"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_check_reads_a_bundled_recipe_by_its_name(capsys):
    assert main(["check", "calculator", "--rows", "4"]) == 0
    assert "calculator_reward" in capsys.readouterr().out


def test_eval_reads_a_bundled_recipe_by_its_name(capsys):
    limit = ["--set", "eval.arguments.count=4"]
    assert main(["eval", "bundled_calculator", "calculator", "--json", *limit]) == 0
    assert json.loads(capsys.readouterr().out)["sets"]["eval"]["prompts"] == 4


def test_with_a_reward_the_name_is_the_generator(capsys):
    words = ["eval", "bundled_calculator", "calculator", "--rows", "3", "--json", "--max-tokens", "8"]
    assert main([*words, "--reward", "covey.tasks:calculator_reward"]) == 0
    assert json.loads(capsys.readouterr().out)["sets"]["eval"]["prompts"] == 3


def test_generate_knows_bundled_policies_and_says_how_tools_get_chats(capsys):
    words = ["generate", "bundled_calculator", "-p", STORY, "--tool", TOOL, "--max-tokens", "40"]
    assert main(words) == 2
    assert "--tool needs chats" in capsys.readouterr().err
    assert main([*words, "--chat"]) == 0
    assert json.loads(capsys.readouterr().out)["completion"][0]["role"] == "assistant"


def test_the_policy_that_sees_is_known_by_its_name(tmp_path, capsys):
    assert main(["eval", "bundled_discs", "discs", "--json", "--set", "eval.arguments.count=40"]) == 0
    found = json.loads(capsys.readouterr().out)["sets"]["eval"]["rows"]
    [solved] = [
        row["interval"]["estimate"] for row in found if row["name"] == "discs_solved" and row["task"] is None
    ]
    assert 0.1 < solved < 0.6
    [row] = disc_rows(1)
    (tmp_path / "disc.png").write_bytes(row["image"])
    words = ["-p", row["prompt"][0]["content"], "--image", str(tmp_path / "disc.png"), "--max-tokens", "4"]
    assert main(["generate", "bundled_discs", *words, "--chat"]) == 0
    said = json.loads(capsys.readouterr().out)["completion"]
    assert set(said if isinstance(said, str) else said[0]["content"]) <= set("rgbyabcd")
