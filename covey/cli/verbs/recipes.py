"""`covey recipes [NAME]`: the recipes that come along; one of them as text, to start from."""

from __future__ import annotations

import argparse

from covey.errors import ConfigError
from covey.text.foreign import show

EXAMPLES = """
examples:
  covey recipes                           what there is
  covey recipes tiny > my.yaml            a copy to change
  covey train tiny                        a bundled recipe by its name
  covey plan countdown --gpu 24           would it fit?

Exit status: 0 printed, 2 there is no such recipe.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this recipe")


def run(args: argparse.Namespace) -> int:
    """List the recipes, or print one.

    Raises:
        ConfigError: there is none of that name.
    """
    from covey.recipes.bundled import header, recipes
    from covey.recipes.nodes import nearest

    found = recipes()
    if args.name is None:
        width = max(map(len, found))
        show("\n".join(f"{name:<{width}}  {header(path)}" for name, path in found.items()))
    elif args.name not in found:
        raise ConfigError(
            f"There is no recipe {args.name!r}.{nearest(args.name, found)} There are {', '.join(found)}."
        )
    else:
        show(found[args.name].read_text(encoding="utf-8"), end="")
    return 0
