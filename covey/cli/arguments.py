"""What several verbs share: how they are added, a recipe, and values that replace some of its own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any

from covey.errors import CoveyWarning

Words = Callable[[], Iterable[str]]
"""What may stand behind an option, for shell completion; asked only when a completion script is written."""


Verbs = argparse._SubParsersAction
"""What verbs are added to."""


def add_verb(
    subparsers: Verbs[argparse.ArgumentParser], name: str, help: str, examples: str
) -> argparse.ArgumentParser:
    """The parser of a verb: what it does in the list and in its own help, and examples below."""
    return subparsers.add_parser(
        name,
        help=help,
        description=help,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """The positional `recipe.yaml`."""
    completed(
        parser.add_argument("recipe", metavar="recipe.yaml", help="the run, in one file (docs/cli.md)"),
        files=True,
    )


def add_set(parser: argparse.ArgumentParser) -> None:
    """The option `--set`."""
    action = parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="replace a value: a setting by its name (learning_rate=1e-5), anything by its path (data.limit=100)",
    )
    completed(action, words=setting_words, suffix="=")


def completed(
    action: argparse.Action, *, words: Words | None = None, files: bool = False, suffix: str = " "
) -> argparse.Action:
    """Says what may stand there, for `covey completion`."""
    vars(action).update(completion_words=words, completion_files=files, completion_suffix=suffix)
    return action


def setting_words() -> list[str]:
    """Every setting that `--set` knows by its name alone."""
    from dataclasses import fields

    from covey.config import GRPOConfig, ModelConfig

    return sorted({f.name for cls in (GRPOConfig, ModelConfig) for f in fields(cls)})


def reward_words() -> list[str]:
    """The bundled rewards."""
    from covey.cli.check import bundled

    return bundled()


def is_main_process() -> bool:
    """Whether this process speaks for the run; under `accelerate launch` one of several does."""
    return os.environ.get("RANK", "0") == "0"


def show_warning(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
    """Covey's warnings as a sentence on standard error, others as Python shows them."""
    import sys
    import warnings

    if issubclass(category, CoveyWarning):
        if is_main_process():
            print(f"warning: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno), end="", file=sys.stderr)
