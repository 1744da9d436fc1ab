"""The verbs over runs, as one calls them: report, watch, rescore."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from covey.cli import main
from tests.clocks import PATIENCE
from tests.runs.synthetic import Story, write_run

STORY = Story(steps=6, prompts_per_step=2, group_size=4, evaluate_every=3, eval_prompts=4)


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path / "run" / "record", STORY)
    return tmp_path / "run"


def test_report_is_written_beside_the_record_or_where_one_says(run, capsys, tmp_path):
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").stat().st_size > 50_000 and "report.html" in capsys.readouterr().out
    assert (
        main(["report", str(run), str(run), "-o", str(tmp_path / "new" / "two.html"), "--max-size", "1"]) == 0
    )
    assert (tmp_path / "new" / "two.html").exists()


@pytest.mark.parametrize("verb", ["report", "watch", "doctor", "rescore", "export"])
def test_no_record_is_status_2_and_says_where_it_looked(verb, tmp_path, capsys):
    assert main([verb, str(tmp_path)]) == 2
    assert f"covey {verb}: No run record at {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["report", "watch", "doctor", "rescore", "export"])
def test_help_teaches_by_examples_and_says_the_exit_status(verb, capsys):
    with pytest.raises(SystemExit) as exit:
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert (
        exit.value.code == 0
        and f"covey {verb} " in shown
        and "examples:" in shown
        and "Exit status:" in shown
    )


def test_watch_serves_until_it_is_interrupted(run):
    child = subprocess.Popen(
        [sys.executable, "-m", "covey", "watch", str(run), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:\d+/", child.stdout.readline())
    assert address
    with urllib.request.urlopen(address.group(), timeout=PATIENCE) as response:
        assert b'id="data"' in response.read()
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=PATIENCE) == 0


def test_watch_says_that_a_port_is_taken(run, capsys):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["watch", str(run), "--port", str(taken.getsockname()[1])]) == 2
    assert "Choose another with --port" in capsys.readouterr().err


def test_rescore_prints_what_changes_and_writes_every_row(run, tmp_path, capsys):
    assert (
        main(
            ["rescore", str(run), "--weight", "accuracy=-1", "-o", str(tmp_path / "rows.csv"), "--show", "3"]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "advantage changes its sign" in shown and "Strongest changes of sign" in shown and " → " in shown
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 6 * 2 * 4
    assert main(["rescore", str(run), "--scale-rewards", "none", "--json", "--steps", "2:3"]) == 0
    assert json.loads(capsys.readouterr().out)["completions"] == 16


def test_rescore_runs_a_changed_function_of_the_working_directory(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_changed_rewards.py").write_text(
        "def longer(completions, **kwargs):\n    return [float(len(c[-1]['content'])) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["rescore", str(run), "--reward", "format=my_changed_rewards:longer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flips"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weight", "accuracy"], "is no NAME=VALUE"),
        (["--weight", "accuracy=high"], "give a number"),
        (["--weight", "nothing=1"], "has no reward 'nothing'"),
        (["--reward", "format=no_such_module:f"], "cannot be imported"),
        (["--reward", "format=json"], "names no function"),
        (["--reward", "format=json:nothing"], "cannot be imported"),
        (["--steps", "a:b"], "give FROM:TO"),
        (["--loss-type", "ppo"], "loss_type is 'ppo'"),
    ],
)
def test_rescore_names_mistakes(run, capsys, options, message):
    assert main(["rescore", str(run), *options]) == 2
    assert message in capsys.readouterr().err
