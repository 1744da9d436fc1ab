"""What can be typed: verbs, their options and their values, read off the verbs' own parsers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Value:
    """What may stand in one place."""

    words: tuple[str, ...] = ()
    is_file: bool = False
    suffix: str = " "
    """What follows a completed word: a space, or `=`."""
    repeats: bool = False
    """Whether several may follow one another."""


@dataclass(frozen=True)
class Option:
    """An option of a verb."""

    flags: tuple[str, ...]
    help: str
    value: Value | None
    """None: it takes none."""


@dataclass(frozen=True)
class Command:
    """A verb."""

    name: str
    help: str
    options: tuple[Option, ...]
    argument: Value
    """What may stand where no option does; several positional arguments are one."""


def commands() -> list[Command]:
    """Every verb, in the order of the help."""
    from covey.cli import VERBS

    return [_command(name, purpose) for name, purpose in VERBS.items()]


def _command(name: str, purpose: str) -> Command:
    subparsers = argparse.ArgumentParser().add_subparsers()
    import_module(f"covey.cli.{name}").add_parser(subparsers)
    actions = subparsers.choices[name]._actions
    options = [
        Option(tuple(a.option_strings), _plain_help(a), None if a.nargs == 0 else _value(a))
        for a in actions
        if a.option_strings
    ]
    places = [_value(a) for a in actions if not a.option_strings]
    words = tuple(word for place in places for word in place.words)
    return Command(name, purpose, tuple(options), Value(words, is_file=not words))


def _value(action: argparse.Action) -> Value:
    found = vars(action)
    words = found["completion_words"]() if found.get("completion_words") else action.choices or ()
    is_file = found.get("completion_files", not words and action.type is None)
    repeats = action.nargs in ("+", "*")
    return Value(tuple(map(str, words)), bool(is_file), found.get("completion_suffix", " "), repeats)


def _plain_help(action: argparse.Action) -> str:
    """The first line of the help, without argparse's placeholders."""
    text = str(action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return " ".join(text.split())
