"""The recipes that come along: each is read, checked and planned; the small ones are run."""

from pathlib import Path

import pytest

from covey.cli import main
from covey.cli.verbs.plan import sections
from covey.recipes import Recipe
from covey.recipes.agent_sections import make_environment, make_tools
from covey.tools import Environments
from covey.tools.tool_contract import Tool
from tests.tiny import tiny_policy, tiny_reward_model

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))
SMALL = {
    "tiny": [],
    "calculator": [],
    "discs": [],
    "tiny_mixture": ["data.arguments.counts={countdown: 8, code: 8, text: 4}"],
}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_is_read_and_planned(path, tmp_path, monkeypatch):
    monkeypatch.chdir(FOLDER.parent)
    recipe = Recipe.load(path, [f"output_dir={tmp_path}", "bf16=false"])
    found = {title: dict(rows) for title, rows in sections(recipe, num_prompts=5000).items()}
    assert int(found["Plan"]["optimizer steps in total"]) >= 40
    assert found["Rewards"] and found["Settings"]["num_generations"] == "8"
    assert recipe.config.num_generations == 8 and recipe.model_config.model_name_or_path


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_says_how_it_is_used(path):
    text = path.read_text()
    assert text.startswith("# ") and f"covey train recipes/{path.name}" in text


@pytest.mark.parametrize("name", SMALL)
def test_the_small_ones_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    policy = tiny_policy(tmp_path / "policy")
    changes = [f"model={policy}", "max_steps=2", "max_completion_length=8", "output_dir=out", *SMALL[name]]
    if name in ("calculator", "discs"):
        changes[0] = f"model=bundled_{name}"  # policies whose template knows tools, and pictures
    if name in ("tiny", "calculator", "discs"):
        changes += ["data.arguments.count=16", "eval.arguments.count=4"]
    else:
        changes.append(f"rewards.friendly.model={tiny_reward_model(tmp_path / 'judge')}")
        changes += [f"eval.{task}.arguments.counts={{{task}: 4}}" for task in ("countdown", "code")]
    assert main(["train", str(FOLDER / f"{name}.yaml"), "--set", *changes]) == 0
    assert (tmp_path / "out" / "model" / "model.safetensors").exists()
    assert "At the end, with 95 % intervals:" in capsys.readouterr().out


@pytest.mark.parametrize("name", SMALL)
def test_the_small_ones_pass_their_check(name, monkeypatch, capsys):
    monkeypatch.chdir(FOLDER.parent)
    status = main(["check", str(FOLDER / f"{name}.yaml"), "--rows", "24"])
    shown = capsys.readouterr().out
    assert status == 0 and "100%" in shown and "nan" not in shown, shown


def test_the_search_tool_is_made_of_the_documents_beside_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents.jsonl").write_text('{"title": "Moon", "text": "It is bright."}\n')
    [search] = make_tools(Recipe.load(FOLDER / "search_tool.yaml").sections["tools"])

    assert search("bright") == "[1] Moon\nIt is bright." and Tool.of(search).name == "search"


def test_the_python_tool_is_an_environment_with_one_tool():
    factory = make_environment(Recipe.load(FOLDER / "python_tool.yaml").sections["environment"])
    try:
        [kind] = Environments(factory).kinds.values()
        assert [made.name for made in kind.tools] == ["python"] and kind.is_closed
        assert factory.seconds == 5 and factory().python("2 * 21") == "42"
    finally:
        factory.close()
