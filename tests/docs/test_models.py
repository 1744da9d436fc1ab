"""docs/models.md says what the code does with each family."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.families import FAMILIES

ROOT = Path(__file__).parents[2]
SOME = ("bert", "gpt2", "gpt_oss", "lfm2", "llama", "mamba")
"""Families that are always tried; the others where slow tests are asked for."""

CASES = [pytest.param(f, marks=() if f in SOME else pytest.mark.slow) for f in FAMILIES]


def tool():
    found = importlib.util.spec_from_file_location("model_table", ROOT / "tools" / "model_table.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_no_row_is_our_fault_and_all_gaps_are_small():
    rows = tool().table()
    assert set(SOME) <= set(rows) <= set(FAMILIES)
    assert [family for family, cells in rows.items() if "FAULT" in cells[1] or "no weight" in cells[3]] == []
    gaps = {family: float(cells[3]) for family, cells in rows.items() if cells[3]}
    assert gaps and max(gaps.values()) < 1e-4, max(gaps, key=gaps.get)


@pytest.mark.parametrize("family", CASES)
def test_a_row_is_what_comes_out(family):
    table = tool()
    name, sampler, update, gap = table.outcome(family)
    said = table.table().get(family)
    assert said, f"run tools/model_table.py {family}"
    assert [name, sampler, update] == said[:3] and (not gap or float(gap) < 1e-4)
