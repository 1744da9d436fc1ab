"""A key, a token or a password leaves Covey by no door: no terminal, no file, no page, no logger, no other host."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import covey.runs
from covey import GRPOConfig
from covey.cli import main
from covey.recipes import Recipe
from covey.runs import RunWriter
from covey.text.secrets import BLANK, without_secrets
from covey.types import Score
from tests.laws import test_hostile_text as doors
from tests.runs.synthetic import Story, batch
from tests.tiny import tiny_policy
from tests.trainer.harness import rows, train

CANARY = "canary7f3a9c"
"""Stands in every secret below."""

FORMS = {
    "a variable of the environment": f"the server said {CANARY}-of-the-environment!",
    "a login": f"https://user:{CANARY}@host/v1",
    "a header": f"Authorization: Bearer {CANARY}",
    "basic": f"Authorization: Basic {CANARY}00",
    "an argument": f"OpenAIClient(api_key='{CANARY}')",
    "json": json.dumps({"api_key": CANARY, "x": 1}),
    "json in json": json.dumps(json.dumps({"hub_token": CANARY})),
    "a query": f"https://host/path?a=1&key={CANARY}&b=2",
    "a hub's": f"hf_{CANARY}0123456789",
    "a service's": f"sk-proj-{CANARY}0123456789",
}
ALL = f"{doors.WORD} [bold]x[/bold] " + " ; ".join(FORMS.values())


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("MY_JUDGE_API_KEY", f"{CANARY}-of-the-environment\n")


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_in_a_text_is_known_by_its_form(form):
    assert CANARY not in without_secrets(FORMS[form]) and BLANK in without_secrets(FORMS[form])


SHUT = [
    door
    for door in [*doors.TERMINAL, *doors.MARKED_UP]
    if door.__name__
    not in (
        "generated",
        "title_of_the_page",
        "data_of_the_page",
        "cell_of_a_notebook",
        "heading_in_a_notebook",
    )
]
"""Doors for words of others; the policy's own completions as data, and names that come out of a record that is clean, are none."""

here, record = doors.here, doors.record


@pytest.mark.parametrize("door", SHUT, ids=lambda door: door.__name__)
def test_no_secret_goes_through_a_door(door, here):
    said = door(ALL, here)
    assert doors.WORD in said and CANARY not in re.sub(r"\s", "", said)


def test_no_secret_is_in_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--hub_token", CANARY, f"--set=api_key={CANARY}", ALL])
    story = Story(steps=1, prompts_per_step=1, group_size=2)
    writer = RunWriter.open(
        tmp_path / "record", rewards={"accuracy": 1.0},
        settings={"hub_token": CANARY, "deep": [{"judge": {"api_key": CANARY, "note": ALL}}]},
    )  # fmt: skip
    [group] = batch(story, 1)
    size = len(group.totals)
    group.scores["accuracy"] = [Score(None, "failed", ALL)] * size
    group.extras["said"] = [{"api_key": CANARY, "text": ALL}] * size
    writer.groups(1, [group])
    writer.event("note", ALL, 1, api_key=CANARY, text=[ALL])
    writer.close("failed", ALL, error=ALL)
    files = [path for path in (tmp_path / "record").rglob("*") if path.is_file()]
    assert len(files) >= 5 and not [path for path in files if CANARY.encode() in path.read_bytes()]
    shown = covey.runs.open(tmp_path / "record").completions().to_json()
    assert CANARY not in shown and "the server said" in shown
    main(["report", str(tmp_path / "record"), "-o", str(tmp_path / "page.html")])
    assert CANARY not in (tmp_path / "page.html").read_text()


def test_no_secret_is_in_a_checkpoint_or_a_model_that_may_be_pushed(tmp_path):
    trainer = train(
        tiny_policy(tmp_path / "policy"), tmp_path / "run", lambda completions, **_: [1.0] * len(completions), rows(),
        hub_token=CANARY, model_init_kwargs={"token": CANARY}, save_strategy="steps", save_steps=1,
    )  # fmt: skip
    trainer.save_model(str(tmp_path / "run" / "model"))
    trainer.create_model_card(model_name=ALL)
    held = [
        path
        for path in (tmp_path / "run").rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert held == []
    saved = torch.load(tmp_path / "run" / "model" / "training_args.bin", weights_only=False)
    assert saved.hub_token is None and saved.output_dir == trainer.args.output_dir
    assert type(saved.save_strategy) is type(trainer.args.save_strategy)
    assert trainer.args.hub_token == CANARY, "the run goes on with it"


def test_a_copy_of_the_settings_keeps_its_secrets(tmp_path):
    args = GRPOConfig(output_dir=str(tmp_path), hub_token=CANARY, use_cpu=True)
    assert copy.deepcopy(args).hub_token == CANARY


def test_what_loggers_get_of_the_settings_holds_no_secret(tmp_path):
    args = GRPOConfig(
        output_dir=str(tmp_path),
        hub_token=CANARY,
        model_init_kwargs={"token": CANARY, "revision": "x"},
        use_cpu=True,
    )
    assert (
        CANARY not in json.dumps(args.to_dict(), default=str)
        and args.to_dict()["model_init_kwargs"]["revision"] == "x"
    )


RECIPE = """
model: {policy}
data: {{file: rows.jsonl}}
rewards: [NumberMatch]
train: {{output_dir: out, hub_token: {token}, max_steps: 1, num_generations: 2, per_device_train_batch_size: 4, use_cpu: true, report_to: none, max_completion_length: 4}}
"""


def test_no_secret_of_a_recipe_is_shown_or_saved(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n' * 4)
    (tmp_path / "r.yaml").write_text(
        RECIPE.format(policy=tiny_policy(tmp_path / "policy"), token=f"{CANARY}1")
    )
    more = ["--set", f"hub_token={CANARY}2"]
    for command in (
        ["plan", "r.yaml", *more],
        ["plan", "r.yaml", "--json", *more],
        ["train", "r.yaml", *more],
    ):
        assert main(command) == 0, capsys.readouterr()
        said = capsys.readouterr()
        assert CANARY not in said.out + said.err
    held = [
        path
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert held == []
    assert Recipe.load(str(tmp_path / "out" / "recipe.yaml")).config.hub_token is None, "it can be read again"


ROOT = Path(doors.ROOT)


def test_one_place_says_what_a_secret_is():
    """A list of names of secrets elsewhere would be another list, which lacks some."""
    words = re.compile(r"passw|api_\??key|bearer", re.IGNORECASE)
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        patterns = re.findall(r"re\.compile\((.*?)\n\)", text, re.DOTALL)
        assert path.name == "secrets.py" or not any(words.search(pattern) for pattern in patterns), path
