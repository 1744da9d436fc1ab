"""`--set`: one value of a recipe, replaced or added."""

import pytest

from covey.errors import ConfigError
from covey.recipes import Recipe
from covey.recipes.overrides import merged, overridden
from covey.recipes.reading import read_yaml

RECIPE = """
train: {beta: 0.1, lr: {a: 1, b: 2}}
rewards:
  - ThinkFormat
  - reward: my.rewards:brief
    weight: 2
  - {model: path/to/judge, name: quality}
"""
SECTIONS = ("model", "train", "data", "rewards")
SETTINGS = {"beta": "train", "lora_r": "model"}


def changed(override):
    return overridden(read_yaml(RECIPE, "r.yaml"), override, SECTIONS, SETTINGS)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("beta=0.2", ("train", "beta"), 0.2),
        ("train.beta=2e-1", ("train", "beta"), 0.2),
        ("lora_r=4", ("model", "lora_r"), 4),
        ("train.lr.a=x=y", ("train", "lr", "a"), "x=y"),
        ("train.lr={c: 3}", ("train", "lr"), {"c": 3}),
        ("data.arguments.count=5", ("data", "arguments", "count"), 5),
        ("beta=", ("train", "beta"), None),
        ("rewards.1.weight=3", ("rewards", 1, "weight"), 3),
        ("rewards.brief.weight=3", ("rewards", 1, "weight"), 3),
        ("rewards.quality.weight=3", ("rewards", 2, "weight"), 3),
        ("rewards.ThinkFormat.weight=3", ("rewards", 0), {"reward": "ThinkFormat", "weight": 3}),
        ("rewards.0=Countdown", ("rewards", 0), "Countdown"),
    ],
)
def test_one_value_is_replaced_and_nothing_else(override, path, value):
    found, before = changed(override).plain(), read_yaml(RECIPE, "r.yaml").plain()
    here = found
    for part in path:
        here = here[part]
    assert here == value
    rest = [name for name in before if name != path[0]]
    assert all(found[name] == before[name] for name in rest)
    if path[0] == "train" and path[1] == "beta":
        assert found["train"]["lr"] == before["train"]["lr"]


def test_a_replaced_value_says_that_it_came_from_the_command_line():
    node = changed("train.beta=x").value["train"].value["beta"]
    assert str(node.error("wrong")) == "--set train.beta: wrong"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("beta", "write --set NAME=VALUE"),
        ("=3", "write --set NAME=VALUE"),
        ("bets=3", "there is no setting 'bets'. Did you mean beta"),
        ("beta=[1", "--set beta:1: "),
        ("rewards.Nothing.weight=1", "there is no item 'Nothing'; there are 3: ThinkFormat, brief, quality"),
        ("rewards.7.weight=1", "there is no item '7'"),
        ("train.beta.x=1", "there is no 'x' in 0.1"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(override, message):
    with pytest.raises(ConfigError) as error:
        changed(override)
    assert message in str(error.value)


def test_plain_values_replace_what_they_name_and_keep_the_rest():
    new = {"train": {"lr": {"b": 3}, "beta": None}, "rewards": ["Countdown"], "data": {"limit": 2}}
    found = merged(read_yaml(RECIPE, "r.yaml"), new)
    assert found.plain() == {
        "train": {"beta": None, "lr": {"a": 1, "b": 3}},
        "rewards": ["Countdown"],
        "data": {"limit": 2},
    }
    assert str(found.value["train"].value["lr"].value["b"].error("wrong")) == "--set train.lr.b: wrong"
    assert found.value["train"].value["lr"].value["a"].mark.line == 2
    with pytest.raises(ConfigError, match=r"--set train\.beta\.x: there is no 'x' in 0\.1"):
        merged(read_yaml(RECIPE, "r.yaml"), {"train": {"beta": {"x": 1}}})


def test_a_recipe_with_other_values_is_checked_like_one_that_says_them():
    sections = {"model": "any", "rewards": ["ThinkFormat"], "eval": {"generator": "countdown"}}
    recipe = Recipe.of(sections, "here").replaced(eval=None, model={"dtype": "bfloat16"}, train={"beta": 0.5})
    assert recipe.plain() == {
        "model": {"model_name_or_path": "any", "dtype": "bfloat16"},
        "rewards": ["ThinkFormat"],
        "train": {"beta": 0.5},
    }
    with pytest.raises(ConfigError, match=r"^--set train\.beta: beta is 'high'; it must be a number"):
        recipe.replaced(train={"beta": "high"})
