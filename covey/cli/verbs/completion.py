"""`covey completion SHELL`: a script that completes verbs, options and files, written by shtab."""

from __future__ import annotations

import argparse

from covey.cli import VERBS, build_parser
from covey.errors import ConfigError
from covey.text.foreign import show

EXAMPLES = """
examples:
  covey completion bash > ~/.local/share/bash-completion/completions/covey
  covey completion zsh > "${fpath[1]}/_covey"
  covey completion fish > ~/.config/fish/completions/covey.fish
  source <(covey completion bash)                          for this shell alone

Needs the package shtab: pip install 'covey[completion]'. Write the script again after an upgrade: it holds the names of
all options, and starts nothing while it completes.

Exit status: 0 printed, 2 no such shell, or shtab is not installed.
"""

SHELLS = ("bash", "fish", "tcsh", "zsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to write for")


def run(args: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        ConfigError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise ConfigError("Completion needs the package shtab: pip install 'covey[completion]'.") from error
    parser = build_parser(VERBS)
    [verbs] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for verb in verbs.choices.values():
        for action in verb._actions:
            if action.nargs != 0 and action.type is None and action.choices is None:
                vars(action)["complete"] = shtab.FILE  # shtab's own attribute: text may name a file
    show(shtab.complete(parser, args.shell), end="")
    return 0
