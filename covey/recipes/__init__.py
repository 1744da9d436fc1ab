"""Recipes: a whole run in one file; every error in it is reported with its line.

    from covey.recipes import Recipe

    recipe = Recipe.load("recipe.yaml", ["learning_rate=1e-5"])
    print(recipe.plan())
    recipe.trainer().train()

`Recipe` is loaded on first use: what only looks up names needs no torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covey.recipes.recipe import Recipe

__all__ = ["Recipe"]


def __getattr__(name: str) -> object:
    if name == "Recipe":
        from covey.recipes.recipe import Recipe

        return Recipe
    raise AttributeError(f"module 'covey.recipes' has no attribute {name!r}")
