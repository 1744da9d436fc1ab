"""`recipes/tiny.yaml` and `recipes/discs.yaml` learn: puzzles that no seed brings into training are solved more often after than before."""

import pytest

import covey.runs
from covey.cli import main


def solved(tmp_path, *changes, recipe="tiny", reward="reward"):
    """The share of the held-out puzzles that are solved, before the run and after it."""
    out = tmp_path / "out"
    assert main(["train", recipe, "--set", f"output_dir={out}", "display=plain", *changes]) == 0
    found = covey.runs.open(out).evaluations()[reward].tolist()
    return found[0], found[-1]


def test_ten_steps_of_the_tiny_recipe_are_seen_to_learn(tmp_path):
    before, after = solved(tmp_path, "max_steps=10", "save_strategy=no", "eval.arguments.count=100")
    assert before < 0.35 and after > before + 0.1, (before, after)


def test_sixty_steps_of_the_recipe_with_pictures_are_seen_to_learn(tmp_path):
    before, after = solved(
        tmp_path,
        "max_steps=60",
        "save_strategy=no",
        "eval.arguments.count=100",
        recipe="discs",
        reward="rewards/discs_solved/mean",
    )
    assert before < 0.5 and after > before + 0.15, (before, after)


@pytest.mark.slow
def test_the_tiny_recipe_doubles_what_is_solved(tmp_path):
    before, after = solved(tmp_path)
    assert before < 0.3 and after > 2 * before, (before, after)
