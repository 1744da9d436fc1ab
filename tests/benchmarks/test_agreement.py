"""The study of agreement sees a sampler whose log-probabilities are not the update's."""

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

from covey.sample.native import sequences

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("offset", "status", "word"), [(0.0, 0, "agrees"), (0.02, 1, "DRIFTS")])
def test_a_sampler_that_is_off_by_more_than_the_bound_drifts(monkeypatch, capsys, offset, status, word):
    monkeypatch.syspath_prepend(str(FOLDER))
    study, right = importlib.import_module("agreement"), sequences.draw

    def shifted(*args, **names):
        sampled = right(*args, **names)
        return dataclasses.replace(sampled, policy_logprobs=sampled.policy_logprobs - offset)

    monkeypatch.setattr(sequences, "draw", shifted)
    monkeypatch.setattr(
        sys, "argv", ["agreement.py", "--families", "qwen3_moe", "--steps", "2", "--new", "6"]
    )
    assert study.main() == status
    assert word in capsys.readouterr().out.splitlines()[-1]
