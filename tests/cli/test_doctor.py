"""`covey doctor` prints what the rules find, and its status can be used by scripts."""

import json

import pytest

from covey.cli import main
from tests.runs.synthetic import Story, settings_of, write_run


def command(*arguments):
    return main(["doctor", *map(str, arguments)])


@pytest.fixture
def sick(tmp_path):
    write_run(
        tmp_path / "record",
        Story(steps=40, kl_growth=1.3, evaluate_every=0, failure_rate=0.3),
        name="a\x1b[31mb",
    )
    return tmp_path


def test_a_problem_is_printed_with_evidence_and_advice_and_gives_status_1(sick, capsys):
    assert command(sick) == 1
    shown = capsys.readouterr().out
    for part in (
        "problem",
        "The policy runs away from its reference.",
        "times its early value",
        "raise beta",
        "curves: kl",
    ):
        assert part in " ".join(shown.split()), part
    assert shown.index("problem") < shown.index("note") and "\x1b" not in shown


def test_machines_get_json(sick, capsys):
    assert command(sick, "--json") == 1
    hints = json.loads(capsys.readouterr().out)
    assert {"rule", "severity", "evidence", "advice", "first_step", "holds"} <= set(hints[0])
    assert "kl_runs_away" in {h["rule"] for h in hints}


def test_a_healthy_run_gives_status_0(tmp_path, capsys):
    write_run(tmp_path / "record", Story(steps=30))
    assert command(tmp_path) == 0
    assert "30 steps recorded" in capsys.readouterr().out


def test_no_record_is_an_error_that_says_where_it_looked(tmp_path, capsys):
    assert command(tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_advice_begins_with_what_was_measured_where_the_run_is_far_from_it(tmp_path, capsys):
    """The bundled policy was trained with 2e-4 to 1e-3: with 2e-2 the policy runs away, and the doctor quotes the nearest run."""
    story = Story(steps=40, kl_growth=1.3, evaluate_every=0)
    size = {"name": "tiny", "parameters": 1_144_576, "trainable": 1_144_576}
    write_run(tmp_path / "record", story, model=size, settings=settings_of(story) | {"learning_rate": 0.02})
    assert command(tmp_path) == 1
    shown = " ".join(capsys.readouterr().out.split())
    quote = "learning_rate: 0.02 is 20 times the most that was measured, 0.001. A start: 0.0003, as bundled"
    assert f"· {quote}" in shown and shown.index(quote) < shown.index("raise beta")
    assert command(tmp_path, "--json") == 1
    (hint,) = [h for h in json.loads(capsys.readouterr().out) if h["rule"] == "kl_runs_away"]
    assert hint["advice"][0].startswith(quote) and hint["advice"][0].endswith("(docs/tasks.md).")
