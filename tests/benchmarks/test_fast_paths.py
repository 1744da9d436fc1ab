"""The study of the fast paths switches what it says it switches."""

import importlib
from pathlib import Path

import pytest

from covey.cli.verbs.quickstart import make_trainer

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("way", ["on", "off"])
def test_a_way_takes_every_fast_path_or_none(tmp_path, monkeypatch, way):
    monkeypatch.syspath_prepend(str(FOLDER))
    study = importlib.import_module("fast_paths")
    changes = dict(display="plain", log_completions=False, record=False, eval_strategy="no")
    trainer = make_trainer(str(tmp_path), 0, 1, **changes)
    engine = study.set_way(trainer, way)
    trainer.train()
    dropped = [log["update/dropped_share"] for log in trainer.state.log_history if "loss" in log]
    assert engine.noted and engine.path == ("fast" if way == "on" else "general")
    assert trainer.updater.forward.is_fast == (way == "on")
    assert (dropped[0] > 0) == (way == "on"), "the first step has groups that all fail"
