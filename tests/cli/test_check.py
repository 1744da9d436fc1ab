"""`covey check` reads rewards and rows as users name them, and its status can be used by scripts."""

import json

import pytest

from covey.cli import main
from covey.cli.verbs import check
from covey.rewards import Countdown, SameAnswer
from tests.tiny import tiny_policy

ROWS = [{"prompt": f"{a} + 1 = ?", "answer": str(a + 1), "task": "sum"} for a in range(6)]


def command(*arguments):
    return main(["check", *map(str, arguments)])


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "own_rewards.py").write_text(
        "from covey.rewards import ExactMatch, Mixture, reward\n"
        "def generous(completions, **_): return [1.0] * len(completions)\n"
        "mixture = Mixture(reward(ExactMatch(), tasks='sum'))\n"
    )
    return path


def test_a_good_reward_gives_status_0_and_a_table(data, capsys):
    assert command(data, "--reward", "NumberMatch") == 0
    out = capsys.readouterr().out
    assert "number_match" in out and "100%" in out and "0 errors" in out


def test_a_bad_reward_gives_status_1_and_says_why(data, capsys):
    assert command(data, "--reward", "own_rewards:generous") == 1
    assert "pays 1 for the attack 'empty'" in capsys.readouterr().out


def test_a_mixture_by_import_path_as_json(data, capsys):
    assert command(data, "--reward", "own_rewards:mixture", "--rows", 3, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["num_rows"] == 3 and report["rewards"]["exact_match"]["rows_by_task"] == {"sum": 3}


def test_completions_of_a_file(data, tmp_path, capsys):
    (tmp_path / "c.jsonl").write_text(
        json.dumps({"prompt": ROWS[0]["prompt"], "completion": "<answer>1</answer>"})
    )
    assert (
        command(data, "--reward", "NumberMatch", "--completions", tmp_path / "c.jsonl") == 1
    )  # the other rows
    assert "completions from file" in capsys.readouterr().out


def test_completions_of_a_model(data, tmp_path, capsys):
    policy = tiny_policy(tmp_path / "policy")
    assert command(data, "--reward", "NumberMatch", "--model", policy, "--rows", 2, "--max-tokens", 4) == 0
    assert "completions from model" in capsys.readouterr().out


def test_wrong_input_gives_status_2(data, tmp_path, capsys):
    assert command(data, "--reward", "Nothing") == 2
    assert "bundled reward (AssertTests" in capsys.readouterr().err
    assert command(data, "--reward", "no_module:x") == 2
    assert command(tmp_path / "none.jsonl", "--reward", "NumberMatch") == 2
    assert command(data, "--reward", "NumberMatch", "--prompt", "question") == 2
    assert "no column 'question'; it has prompt, answer, task" in capsys.readouterr().err


def test_every_bundled_name_can_be_made():
    for name in check.BUNDLED:
        assert callable(check.load_reward(name))
    assert isinstance(check.load_reward("SameAnswer"), SameAnswer) and isinstance(
        check.load_reward("Countdown"), Countdown
    )
