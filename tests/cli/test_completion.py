"""Shell completion: what the scripts offer, asked of the shells themselves."""

import shutil
import subprocess

import pytest

from covey.cli import VERBS, main
from covey.cli.completing import SCRIPTS, commands

needs_shell = {
    name: pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed")
    for name in SCRIPTS
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("completion"), commands()
    for name, write in SCRIPTS.items():
        (folder / f"covey.{name}").write_text(write(found))
    return folder


def bash(scripts, *words):
    """What bash offers behind these words; the last may be part of one."""
    typed = " ".join(f"'{w}'" for w in ("covey", *words))
    code = f"""
source {scripts}/covey.bash
COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _covey; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=scripts)
    return done.stdout.split()


def fish(scripts, line):
    code = f"source {scripts}/covey.fish; complete -C '{line}'"
    done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True, cwd=scripts)
    return [offer.split("\t")[0] for offer in done.stdout.splitlines()]


CASES = [
    (["tr"], {"train"}),
    (["train", "--res"], {"--resume"}),
    (["eval", "model", "data", "--reward", "SameA"], {"SameAnswer"}),
    (["train", "r.yaml", "--set", "learning_r"], {"learning_rate="}),
    (["completion", "z"], {"zsh"}),
]


@needs_shell["bash"]
@pytest.mark.parametrize(("words", "expected"), CASES)
def test_bash_offers_verbs_options_and_values(scripts, words, expected):
    assert set(bash(scripts, *words)) == expected


@needs_shell["bash"]
def test_bash_offers_files_where_a_recipe_stands_and_settings_behind_a_setting(scripts):
    assert "covey.bash" in bash(scripts, "train", "cov")
    assert bash(scripts, "train", "r.yaml", "--set", "beta=1", "epsilon_h") == ["epsilon_high="]
    assert set(bash(scripts, "")) == {*VERBS, "--help", "--version"}


@needs_shell["fish"]
@pytest.mark.parametrize(("words", "expected"), CASES)
def test_fish_offers_the_same(scripts, words, expected):
    assert set(fish(scripts, " ".join(["covey", *words]))) >= expected


@needs_shell["zsh"]
def test_zsh_takes_the_script(scripts):
    code = f"autoload -U compinit; compinit -u -D; source {scripts}/covey.zsh; print $_comps[covey]"
    done = subprocess.run(["zsh", "-fc", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "_covey" and not done.stderr


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_verb_and_every_option_is_in_every_script(scripts, shell):
    text = (scripts / f"covey.{shell}").read_text()
    for command in commands():
        assert command.name in text
        for flag in (flag for option in command.options for flag in option.flags):
            assert flag in text or f"-l {flag.lstrip('-')}" in text or f"-s {flag.lstrip('-')}" in text


def test_the_script_is_printed_and_another_shell_is_refused(capsys):
    assert main(["completion", "fish"]) == 0
    assert capsys.readouterr().out.startswith("# fish completion for covey")
    with pytest.raises(SystemExit) as end:
        main(["completion", "tcsh"])
    assert end.value.code == 2
