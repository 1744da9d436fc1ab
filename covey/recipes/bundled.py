"""Recipes, policy and reward model that the package brings, by name."""

from __future__ import annotations

from pathlib import Path

BUNDLED = "bundled"
"""As `model` of a recipe: the policy of the package; as the model of a reward: its reward model."""

ASSETS = Path(__file__).parents[1] / "assets"
POLICY, REWARD_MODEL = str(ASSETS / "policy"), str(ASSETS / "reward_model")


def recipes() -> dict[str, Path]:
    """Return the file of every bundled recipe by its name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "files").glob("*.yaml"))}


def recipe_path(name: str | Path) -> Path:
    """Return the file of a recipe: a path, or the name of a bundled one where there is no such file."""
    path = Path(name)
    return path if path.exists() else recipes().get(str(name), path)


def header(path: Path) -> str:
    """Return the first sentence of a recipe: its purpose."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("# ").rstrip(".")
