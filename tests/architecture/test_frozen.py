"""What scripts, shells and dashboards rely on: names, settings, flags and metric keys, one per line in `frozen/`.

A change of one of these files is a change for users: it stands in the CHANGELOG. To write them anew:

    COVEY_FREEZE=1 python -m pytest tests/architecture/test_frozen.py
"""

import argparse
import dataclasses
import os
from pathlib import Path

import pytest

import covey
import covey.rewards
import covey.runs
import covey.tasks
from covey import GRPOConfig, ModelConfig
from covey.cli import VERBS, build_parser
from covey.config.engine_settings import EngineSettings
from tests.tiny import tiny_policy
from tests.trainer.harness import Recorder, by_length, rows, train

FROZEN = Path(__file__).parent / "frozen"


def held(name, lines):
    """Compare with the file, or write it where COVEY_FREEZE is set."""
    path, text = FROZEN / f"{name}.txt", "".join(f"{line}\n" for line in lines)
    if os.environ.get("COVEY_FREEZE"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; see the head of this file"


def test_exported_names():
    packages = (covey, covey.rewards, covey.runs, covey.tasks)
    held("names", [f"{p.__name__}.{name}" for p in packages for name in sorted(p.__all__)])


@pytest.mark.parametrize("config", [GRPOConfig, EngineSettings, ModelConfig], ids=lambda c: c.__name__)
def test_settings(config):
    own = [f for f in dataclasses.fields(config) if f.name in config.__annotations__]
    held(config.__name__, [f"{f.name}: {config.__annotations__[f.name]} = {default(f)}" for f in own])


def verb_parser(verb):
    (choice,) = (a for a in build_parser([verb])._actions if isinstance(a, argparse._SubParsersAction))
    return choice.choices[verb]


def default(field):
    return repr(field.default) if field.default is not dataclasses.MISSING else "..."


def test_flags_of_the_command_line():
    lines = []
    for verb in VERBS:
        for action in verb_parser(verb)._actions:
            if not isinstance(action, argparse._HelpAction):
                lines.append(f"{verb} {' '.join(action.option_strings) or action.dest}")
    held("flags", lines)


def test_metric_keys(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    trainer = train(
        folder,
        tmp_path,
        Recorder(by_length, "mine"),
        rows(4, task=["sums"] * 4),
        beta=0.1,
        eval_dataset=rows(2),
    )
    trainer.evaluate()
    held("metrics", sorted({key for entry in trainer.state.log_history for key in entry}))
