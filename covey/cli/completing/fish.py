"""The script for fish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from covey.cli.completing.commands import Command, Option, Value


def fish(commands: Sequence[Command]) -> str:
    """The script that completes these commands."""
    lines = ["# fish completion for covey; written by `covey completion fish`", "complete -c covey -f"]
    for command in commands:
        lines.append(
            f"complete -c covey -n __fish_use_subcommand -a {command.name} -d {_quoted(command.help)}"
        )
    for command in commands:
        lines += _of(command)
    return "\n".join(lines) + "\n"


def _of(command: Command) -> Iterator[str]:
    start = f"complete -c covey -n '__fish_seen_subcommand_from {command.name}'"
    if command.argument.words:
        yield f"{start} -a {_quoted(' '.join(command.argument.words))}"
    if command.argument.is_file:
        yield f"{start} -F"
    for option in command.options:
        yield f"{start} {_flags(option)} -d {_quoted(option.help)}{_taken(option.value)}"


def _flags(option: Option) -> str:
    return " ".join(f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in option.flags)


def _taken(value: Value | None) -> str:
    if value is None:
        return ""
    if value.words:
        return f" -x -a {_quoted(' '.join(word + value.suffix.strip() for word in value.words))}"
    return " -r -F" if value.is_file else " -x"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
