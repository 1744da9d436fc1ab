"""Completion scripts: what can be typed, read off the parsers, and how each shell is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from covey.cli.completing.bash import bash
from covey.cli.completing.commands import Command, commands
from covey.cli.completing.fish import fish
from covey.cli.completing.zsh import zsh

SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""How each shell's script is written."""

__all__ = ["SCRIPTS", "commands"]
