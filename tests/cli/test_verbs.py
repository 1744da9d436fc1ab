"""All verbs: each teaches, and says what its exit status means."""

import subprocess
import sys

import pytest

from covey.cli import VERBS, main


@pytest.mark.parametrize("verb", VERBS)
def test_help_teaches_and_says_the_exit_status(verb, capsys):
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0 and f"covey {verb}" in shown
    assert "examples:" in shown and "Exit status:" in shown


def test_without_a_verb_the_verbs_are_listed_in_the_order_of_use(capsys):
    assert main([]) == 2
    shown = capsys.readouterr().out
    positions = [
        shown.index(f"\n    {verb} ") if f"\n    {verb} " in shown else shown.index(f"\n    {verb}\n")
        for verb in VERBS
    ]
    assert positions == sorted(positions) and "Exit status: 0 done" in shown


def test_a_misspelt_verb_is_status_2_with_a_suggestion(capsys):
    assert main(["tran", "x.yaml"]) == 2
    assert "there is no verb 'tran'. Did you mean train" in capsys.readouterr().err


def test_help_imports_no_torch():
    code = "import sys; from covey.cli import main\ntry: main(['eval', '--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
