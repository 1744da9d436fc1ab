"""An option with a value that cannot be is named, and the exit status is 2; nothing is loaded, trained or written."""

import pytest

from covey.cli import main

CASES = {
    "watch . --port 99999": "--port is 99999",
    "watch . --port -1": "--port is -1",
    "quickstart --steps 0": "--steps is 0",
    "quickstart --steps -3": "--steps is -3",
    "rescore . --steps 5:3": "--steps is '5:3'",
    "rescore . -o rows.txt": "rows.txt",
    "export . --steps 5:3": "--steps is '5:3'",
    "check data.jsonl --reward SameAnswer --completions missing.jsonl": "missing.jsonl: there is no such file",
    "eval bundled countdown --reward SameAnswer --temperature 0": "--greedy",
    "train tiny --max_steps 3": "--set NAME=VALUE",
    "doctor . --nonsense": "--nonsense",
}


@pytest.mark.parametrize("command", CASES)
def test_the_option_is_named(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert CASES[command] in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
