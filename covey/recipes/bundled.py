"""Recipes that the package brings, and the word for its models in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from covey.tasks import assets

SUFFIXES = (".yaml", ".yml")
"""Endings of a recipe's file name."""
BUNDLED = "bundled"
"""As `model` of a recipe: the policy of the package; as the model of a reward: its reward model."""
POLICIES = {
    BUNDLED: assets.POLICY,
    "bundled_calculator": assets.CALCULATOR_POLICY,
    "bundled_discs": assets.DISCS_POLICY,
}
"""Policies of the package by what recipes and the command line call them."""


def recipes() -> dict[str, Path]:
    """Return the file of every bundled recipe by its name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "files").glob("*.yaml"))}


def policy_name(name: str) -> str:
    """Return a model's name or folder; of a policy of the package its folder."""
    return str(POLICIES.get(name, name))


def recipe_path(name: str | Path) -> Path:
    """Return the file of a recipe: a path, or the name of a bundled one where there is no such file."""
    path = Path(name)
    return path if path.exists() else recipes().get(str(name), path)


def is_recipe(dataset: str, rewards: Sequence[str]) -> bool:
    """Return whether a word for data is a recipe: a file of that kind, or a bundled name with no rewards beside it.

    With rewards the same name, such as countdown, is the generator of the data alone.
    """
    return dataset.endswith(SUFFIXES) or (not rewards and dataset in recipes())


def header(path: Path) -> str:
    """Return the first sentence of a recipe: its purpose."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("# ").rstrip(".")
