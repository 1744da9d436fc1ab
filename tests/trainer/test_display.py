"""A run says what tells whether it learns, in the form of the place where it is read: pipe, terminal, notebook."""

from __future__ import annotations

import sys
import types

import pytest

import covey.runs
from covey import GRPOTrainer
from covey.trainer import run_log
from tests.tiny import tiny_policy
from tests.trainer.harness import config, rows

pytestmark = pytest.mark.any_version


def by_length(completions, **_):
    return [float(len(text)) for text in completions]


def trained(folder, **given):
    policy = tiny_policy(folder / "policy")
    settings = dict(
        max_steps=4, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=8, num_generations_eval=2
    )
    args = config(folder / "out", **{**settings, **given})
    trainer = GRPOTrainer(str(policy), by_length, args, rows(), eval_dataset=rows(2))
    trainer.train()
    return trainer


@pytest.mark.parametrize("disable_tqdm", [True, False])
@pytest.mark.parametrize("every", [1, 2])
def test_a_pipe_gets_one_short_line_per_log_and_no_dictionaries(tmp_path, capfd, every, disable_tqdm):
    trained(tmp_path, logging_steps=every, disable_tqdm=disable_tqdm)
    out, err = capfd.readouterr()
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == [f"step {n}/4" for n in range(every, 5, every)]
    assert (
        all("reward " in line and "length " in line and len(line) < 160 for line in lines)
        and " left" in lines[-1]
    )
    assert out.count("evaluation at step ") == 2 and "evaluation at step 4  reward " in out
    assert "{'" not in out and "/4 [" not in err, (out, err)


@pytest.mark.parametrize("display", ["plain", "live"])
def test_a_run_names_its_record_and_the_verbs_that_read_it(tmp_path, capsys, display):
    trained(tmp_path, display=display)
    out, folder = capsys.readouterr().out, tmp_path / "out"
    assert (
        f"The record is in {folder / 'record'}: covey watch {folder}, report {folder}, doctor {folder}."
        in out
    )
    trained(tmp_path, record=False)
    assert "The record is in" not in capsys.readouterr().out


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for IPython, in whose cells what is drawn last stands; yields that."""
    drawn = []
    display = types.ModuleType("IPython.display")
    display.HTML = lambda text: text
    handle = types.SimpleNamespace(update=drawn.append)
    display.display = lambda page, **_: (drawn.append(page), handle)[1]
    ipython = types.ModuleType("IPython")
    ipython.display = display
    for name, module in (("IPython", ipython), ("IPython.display", display)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(run_log, "is_in_notebook", lambda: True)
    yield drawn
    for name in ("covey.trainer.notebook", "transformers.utils.notebook"):
        sys.modules.pop(name, None)


def test_a_notebook_gets_a_table_of_rewards(tmp_path, notebook, capsys):
    trainer = trained(tmp_path)
    page = notebook[-1]
    for heading in ("Step", "Reward", "Reward std", "Length", "eval reward"):
        assert f"<th>{heading}</th>" in page, page
    logged = [entry["reward"] for entry in trainer.state.log_history if "loss" in entry]
    assert page.count("<tr ") + page.count("<tr>") >= 5 and all(f"{reward:.6f}" in page for reward in logged)
    assert "step 1/4" not in capsys.readouterr().out


def test_a_run_shows_itself_in_a_cell(tmp_path):
    trained(tmp_path)
    run = covey.runs.open(tmp_path / "out")
    assert (
        "<polyline" in run._repr_html_()
        and "4 steps" in run._repr_html_()
        and "finished" in run._repr_html_()
    )
    page = run.show(height=700)._repr_html_()
    assert page.startswith("<iframe srcdoc=") and "height:700px" in page and "<script" not in page
