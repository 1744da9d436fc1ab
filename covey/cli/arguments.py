"""Arguments that several verbs share, and how warnings look on the command line."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import TextIO

from covey.errors import CoveyWarning
from covey.text.foreign import show


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add the positional `recipe.yaml`."""
    parser.add_argument(
        "recipe",
        metavar="recipe.yaml",
        help="the run, in one file (docs/cli.md), or the name of a bundled one (covey recipes)",
    )


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add the option `--set`."""
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="replace a value: a setting by its name (learning_rate=1e-5), anything by its path (data.limit=100)",
    )


def is_main_process() -> bool:
    """Return whether this process prints and writes for the run; `accelerate launch` starts several."""
    return os.environ.get("RANK", "0") == "0"


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning on standard error: Covey's own as a sentence, others as Python shows them."""
    if not issubclass(category, CoveyWarning):
        show(warnings.formatwarning(message, category, filename, lineno), sys.stderr, end="")
    elif is_main_process():
        show(f"warning: {message}", sys.stderr)
