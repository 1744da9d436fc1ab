"""Shell completion: what the script offers, asked of bash itself; and what is printed where shtab is missing."""

import subprocess
import sys

import pytest

from covey.cli import VERBS, main
from covey.cli.verbs.completion import SHELLS

pytest.importorskip("shtab")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-m", "covey", "completion", "bash"], capture_output=True, text=True, check=True
    )
    path = tmp_path_factory.mktemp("completion") / "covey.bash"
    path.write_text(done.stdout)
    return path


def offered(script, *words):
    """What bash offers behind these words; the last may be part of one."""
    typed = " ".join(f"'{w}'" for w in ("covey", *words))
    code = f"""
source {script}
COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _shtab_covey; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=script.parent)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], {"train", "try"}),
        (["train", "--res"], {"--resume"}),
        (["completion", "z"], {"zsh"}),
        (["se"], {"serve"}),
        (["serve", "cov"], {"covey.bash"}),
        (["serve", "--max"], {"--max-sequences"}),
        (["train", "cov"], {"covey.bash"}),
        (["eval", "model", "cov"], {"covey.bash"}),
        (["check", "data", "--completions", "cov"], {"covey.bash"}),
    ],
)
def test_bash_offers_verbs_options_choices_and_files(script, words, expected):
    assert offered(script, *words) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_is_in_every_script(shell, capsys):
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)


def test_another_shell_is_refused_and_a_missing_package_is_named(capsys, monkeypatch):
    with pytest.raises(SystemExit) as end:
        main(["completion", "powershell"])
    assert end.value.code == 2
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'covey[completion]'" in capsys.readouterr().err
