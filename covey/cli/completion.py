"""`covey completion SHELL`: a script that completes verbs, options and values, made from the verbs' own parsers."""

from __future__ import annotations

import argparse

from covey.cli.arguments import add_verb
from covey.cli.completing import SCRIPTS, commands

HELP = "print a script that completes covey's verbs and options in a shell"

EXAMPLES = """
examples:
  covey completion bash > ~/.local/share/bash-completion/completions/covey
  covey completion zsh > "${fpath[1]}/_covey"
  covey completion fish > ~/.config/fish/completions/covey.fish
  source <(covey completion bash)                          for this shell alone

Write it again after an upgrade: the script holds the names of all settings, and starts nothing while it completes.

Exit status: 0 printed, 2 no such shell.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = add_verb(subparsers, "completion", HELP, EXAMPLES)
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="the shell to write for")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(SCRIPTS[args.shell](commands()), end="")
    return 0
