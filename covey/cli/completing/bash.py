"""The script for bash."""

from __future__ import annotations

from collections.abc import Sequence

from covey.cli.completing.commands import Command, Value

SCRIPT = """\
# bash completion for covey; written by `covey completion bash`
_covey() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]}} option= words= suffix= files= options= i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$cur"))
        return
    fi
    # The option whose value is typed: the last one before the cursor that takes values, if it still does.
    for ((i = COMP_CWORD - 1; i > 1; i--)); do
        [[ ${{COMP_WORDS[i]}} == -* ]] && option=${{COMP_WORDS[i]}} && break
    done
    ((i < COMP_CWORD - 1)) && [[ " {repeating} " != *" $verb $option "* ]] && option=
    case "$verb" in
{options}
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
        return
    fi
    files=1
    case "$verb $option" in
{values}
    esac
    if [[ -n $words ]]; then
        [[ $suffix == = ]] && compopt -o nospace 2>/dev/null
        COMPREPLY=($(compgen -W "$words" -S "$suffix" -- "$cur"))
    fi
    [[ -n $files ]] && COMPREPLY+=($(compgen -f -- "$cur")) && compopt -o filenames 2>/dev/null
}}
complete -F _covey covey
"""


def bash(commands: Sequence[Command]) -> str:
    """The script that completes these commands."""
    options = [f'        {c.name}) options="{_flags(c)}" ;;' for c in commands]
    values = [line for c in commands for line in _values(c)]
    return SCRIPT.format(
        verbs=" ".join(c.name for c in commands),
        repeating="  ".join(_repeating(commands)),
        options="\n".join(options),
        values="\n".join(values),
    )


def _flags(command: Command) -> str:
    return " ".join(flag for option in command.options for flag in option.flags)


def _values(command: Command) -> list[str]:
    """What stands behind each option, then what stands where no option does."""
    lines = []
    for option in command.options:
        places = "|".join(f"'{command.name} {flag}'" for flag in option.flags)
        if option.value is not None:
            lines.append(f"        {places}) {_assignments(option.value)} ;;")
    return [*lines, f"        '{command.name} '*) {_assignments(command.argument)} ;;"]


def _assignments(value: Value) -> str:
    suffix = value.suffix.strip()
    return f'words="{" ".join(value.words)}" suffix="{suffix}" files={"1" if value.is_file else ""}'


def _repeating(commands: Sequence[Command]) -> list[str]:
    found = [(c.name, o) for c in commands for o in c.options if o.value is not None and o.value.repeats]
    return [f"{name} {flag}" for name, option in found for flag in option.flags]
