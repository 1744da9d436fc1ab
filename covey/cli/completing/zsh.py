"""The script for zsh."""

from __future__ import annotations

from collections.abc import Sequence

from covey.cli.completing.commands import Command, Option, Value

SCRIPT = """\
#compdef covey
# zsh completion for covey; written by `covey completion zsh`
_covey() {{
    local -a verbs
    verbs=(
{verbs}
    )
    if ((CURRENT == 2)); then
        _describe -t verbs verb verbs
        return
    fi
    shift words
    ((CURRENT--))
    case $words[1] in
{cases}
    esac
}}
if [[ $funcstack[1] == _covey ]]; then
    _covey "$@"
elif ((${{+functions[compdef]}})); then
    compdef _covey covey
fi
"""


def zsh(commands: Sequence[Command]) -> str:
    """The script that completes these commands."""
    verbs = "\n".join(f"        {_quoted(f'{c.name}:{_escaped(c.help)}')}" for c in commands)
    return SCRIPT.format(verbs=verbs, cases="\n".join(_case(c) for c in commands))


def _case(command: Command) -> str:
    specs = [spec for option in command.options for spec in _specs(option)]
    lines = " \\\n".join(
        f"                {spec}" for spec in [*specs, _quoted(f"*:argument:{_action(command.argument)}")]
    )
    return f"        {command.name})\n            _arguments -s \\\n{lines}\n            ;;"


def _specs(option: Option) -> list[str]:
    """One specification per flag."""
    value = "" if option.value is None else f":value:{_action(option.value)}"
    return [_quoted(f"*{flag}[{_escaped(option.help)}]{value}") for flag in option.flags]


def _action(value: Value) -> str:
    if value.words and value.suffix == "=":
        return "{compadd -S= -- " + " ".join(value.words) + "}"
    if value.words:
        return "(" + " ".join(value.words) + ")"
    return "_files" if value.is_file else " "


def _escaped(text: str) -> str:
    for character in "\\[]:":
        text = text.replace(character, "\\" + character)
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
