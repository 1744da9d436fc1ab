"""The environment of a run: what changes its numbers, and no secret."""

import json
import subprocess
import sys

import pytest

from covey.runs.record.environment import (
    dataset_facts,
    environment,
    git_state,
    process_start,
)  # fmt: skip
from covey.text.secrets import blanked, without_secret_options


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
    assert blanked(given) == {
        "hub_token": "(not recorded)", "pad_token": "</s>", "max_tokens": 5, "report_to": "none", "hub_token_none": "a",
        "judge": {"api_key": "(not recorded)", "model": "m", "password": ""},
    }  # fmt: skip


def test_secrets_on_the_command_line_are_blanked():
    given = ["train.py", "--hub_token", "hf_x", "--lr", "1e-6", "--api-key=sk", "--push", "--token", "--next"]
    blank = "(not recorded)"
    assert without_secret_options(given) == [
        "train.py", "--hub_token", blank, "--lr", "1e-6", f"--api-key={blank}", "--push", "--token", "--next",
    ]  # fmt: skip


SECRET = "S3CR3T-value-of-it"


@pytest.mark.parametrize(
    "name", ["token", "hub_token", "secret_key", "private_key", "apikey", "api-key", "passwd", "Authorization", "db_password", "client_secret",
             "access_key", "credentials", "judge.api_key", "HF_TOKEN", "passphrase"],
)  # fmt: skip
def test_a_secret_is_blanked_wherever_it_stands(name):
    settings = {"deep": [{"x": ({name: SECRET},)}], name: SECRET, "all": {name: [SECRET]}}
    assert SECRET not in json.dumps(blanked(settings))
    for given in (["--set", f"{name}={SECRET}"], [f"--set={name}={SECRET}"], [f"--{name}", SECRET], [f"--{name}={SECRET}"], [f"--{name}", f"-{SECRET}"],
                  [f"--{name}", f"a={SECRET}"]):  # fmt: skip
        assert SECRET not in " ".join(without_secret_options(["covey", *given, "--next"])), given


@pytest.mark.parametrize(
    "text",
    [
        "https://user:{}@host/v1",
        "https://{}@host/",
        "https://host/?a=1&token={}",
        "Authorization: Bearer {}",
        "{{'api_key': '{}'}}",
        "password={}",
    ],
)
def test_a_secret_in_a_text_is_blanked(text):
    assert SECRET not in json.dumps(blanked({"url": text.format(SECRET), "list": [text.format(SECRET)]}))
    assert SECRET not in " ".join(without_secret_options(["x", text.format(SECRET)]))


def test_values_of_secret_variables_are_blanked_in_every_text(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET + "\n")
    assert blanked({"note": f"it is {SECRET}!"}) == {"note": "it is (not recorded)!"}


def test_ordinary_names_are_no_secrets():
    names = [
        "eos_token",
        "pad_token",
        "num_tokens",
        "key",
        "sort_key",
        "stop_token_ids",
        "author",
        "authors",
        "tokenizer",
        "secretary",
        "keys",
    ]
    assert blanked(dict.fromkeys(names, "some value")) == dict.fromkeys(names, "some value")


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
