"""The environment of a run: what changes its numbers, and no secret."""

import json
import subprocess
import sys

from covey.runs.record.environment import (
    dataset_facts,
    environment,
    git_state,
    process_start,
    without_secret_options,
    without_secrets,
)  # fmt: skip


def test_python_libraries_and_machine_are_there_and_can_be_said_in_json():
    found = json.loads(json.dumps(environment()))
    assert found["python"].startswith("3.") and found["libraries"]["numpy"] and found["cores"] >= 1


def test_asking_for_the_environment_imports_no_torch():
    code = "import sys; from covey.runs.record.environment import environment as e; e(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_secrets_are_blanked_deep_inside_and_ordinary_settings_are_not():
    given = {
        "hub_token": "hf_x", "pad_token": "</s>", "max_tokens": 5, "report_to": "none", "hub_token_none": "a",
        "judge": {"api_key": "sk-x", "model": "m", "password": ""},
    }  # fmt: skip
    assert without_secrets(given) == {
        "hub_token": "(not recorded)", "pad_token": "</s>", "max_tokens": 5, "report_to": "none", "hub_token_none": "a",
        "judge": {"api_key": "(not recorded)", "model": "m", "password": ""},
    }  # fmt: skip


def test_secrets_on_the_command_line_are_blanked():
    given = ["train.py", "--hub_token", "hf_x", "--lr", "1e-6", "--api-key=sk", "--push", "--token", "--next"]
    blank = "(not recorded)"
    assert without_secret_options(given) == [
        "train.py", "--hub_token", blank, "--lr", "1e-6", f"--api-key={blank}", "--push", "--token", "--next",
    ]  # fmt: skip


def test_git_state_names_the_commit_and_shows_what_was_changed(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    assert git_state(tmp_path / "nowhere") is None
    git("init", "-b", "main")
    (tmp_path / "reward.py").write_text("weight = 1\n")
    git("add", "."), git("commit", "-m", "first")
    clean = git_state(tmp_path)
    assert clean["clean"] and len(clean["commit"]) == 40 and clean["branch"] == "main" and clean["diff"] == ""
    (tmp_path / "reward.py").write_text("weight = 2\n")
    changed = git_state(tmp_path)
    assert not changed["clean"] and "+weight = 2" in changed["diff"] and changed["commit"] == clean["commit"]


def test_a_process_has_the_same_start_at_every_look():
    import os

    assert process_start(os.getpid()) == process_start(os.getpid()) is not None
    assert process_start(2**22 + 1) is None


def test_facts_of_a_dataset_and_of_a_stream():
    class Table(list):
        column_names = ("prompt", "answer")
        _fingerprint = "abc"

    assert dataset_facts(Table([1, 2]), "mine") == {
        "name": "mine", "rows": 2, "columns": ["prompt", "answer"], "fingerprint": "abc",
    }  # fmt: skip
    assert dataset_facts(iter([]))["rows"] is None
