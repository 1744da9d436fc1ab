"""The table of noise where groups grow: a group that cannot grow is an equal one, and the estimator has the right mean."""

import importlib
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_a_group_that_does_not_grow_is_an_equal_one(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    study = importlib.import_module("allocation")
    apart, along = study.noise_of_equal(4)
    assert study.noise(study.GRID, 4, 4)[0] == pytest.approx(apart)
    assert study.noise(study.GRID, 4, 4)[1] == pytest.approx(along)
    rate = np.array([0.5])
    # RLOO of two: the pair differs half of the time, and then both weigh 1/2 apart, or the value is 1/2 along
    monkeypatch.setattr(study, "GRID", rate)
    assert study.noise_of_equal(2)[0] == pytest.approx(0.5 * 2 * 0.5**2)
    assert study.noise_of_equal(2)[1] == pytest.approx(0.5 * 0.5**2 - 0.25**2)
