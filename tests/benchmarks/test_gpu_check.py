"""`make gpu-check` runs, sees a law that is broken, and says where there is no GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """The module, with only the quick laws."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("gpu_check", FOLDER / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    laws = module.gpu_laws
    monkeypatch.setattr(laws, "FAMILY", ("qwen2",))
    monkeypatch.setattr(laws, "LAWS", [law for law in laws.LAWS if law is not laws.a_tiny_policy_learns])
    return module


def status(script, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *words])
    return script.main()


def test_every_law_and_figure_is_in_the_table(script, monkeypatch, capsys):
    assert status(script, monkeypatch, "--device", "cpu", "--tiny") == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("ok")]
    assert len(rows) == len(script.gpu_laws.LAWS) + 1 + len(script.TINY_CASES)
    assert "everything holds" in out and "transformers" in out


def test_a_broken_law_is_named_and_fails_the_check(script, monkeypatch, capsys):
    laws = script.gpu_laws
    monkeypatch.setattr(laws, "LAWS", [laws.a_token_of_probability_0_is_never_drawn])
    monkeypatch.setattr(laws, "inverse_cdf", lambda p, u: torch.zeros(len(p), dtype=torch.long))
    assert status(script, monkeypatch, "--device", "cpu", "--tiny") == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(script, monkeypatch, capsys):
    assert status(script, monkeypatch) == 2
    assert "no CUDA device" in capsys.readouterr().err
