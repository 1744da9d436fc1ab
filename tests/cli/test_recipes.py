"""`covey recipes`: what comes along is listed, printed to start from, and found by its name."""

import sys
from pathlib import Path

import pytest

from covey.cli import main
from covey.recipes import Recipe
from covey.recipes.bundled import recipes
from covey.tasks.assets import POLICY, REWARD_MODEL

FOLDER = Path(__file__).parents[2] / "recipes"


def test_every_recipe_of_the_repository_comes_along_and_is_listed_with_what_it_is_for(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        [line.split()[0] for line in lines]
        == sorted(path.stem for path in FOLDER.glob("*.yaml"))
        == list(recipes())
    )
    assert all(len(line.split()) > 5 for line in lines)


def test_a_printed_recipe_is_the_file(capsys):
    assert main(["recipes", "tiny"]) == 0
    assert capsys.readouterr().out == (FOLDER / "tiny.yaml").read_text(encoding="utf-8")


def test_a_wrong_name_is_status_2_with_a_suggestion(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (["recipes", "tny"], ["train", "tny"]):
        assert main(command) == 2
        assert "Did you mean tiny" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiny", "tiny_mixture"])
def test_a_bundled_recipe_is_found_by_its_name_from_any_folder(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    recipe = Recipe.load(name)
    assert recipe.model_config.model_name_or_path == str(POLICY) and recipe.name == name
    assert recipe.sections["model"].plain() == {"model_name_or_path": "bundled"}, (
        "the saved recipe names no folder of this machine"
    )
    assert POLICY.is_dir() and REWARD_MODEL.is_dir()
    assert main(["plan", name, "--rows", "100"]) == 0
    assert str(len(recipe.rewards())) == {"tiny": "1", "tiny_mixture": "3"}[name]


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny").write_text("model: mine\nrewards: [ThinkFormat]\n", encoding="utf-8")
    assert Recipe.load("tiny").model_config.model_name_or_path == "mine"
