"""docs/models.md says what the code does with each family."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.families import FAMILIES

pytest.importorskip("torchvision", reason="pictures need the extra `vision`")

from tests.vision.tiny_eyes import EYES

ROOT = Path(__file__).parents[2]
SOME = ("bert", "gpt2", "gpt_oss", "lfm2", "llama", "mamba")
"""Families that are always tried; the others where slow tests are asked for."""

CASES = [pytest.param(f, marks=() if f in SOME else pytest.mark.slow) for f in FAMILIES]


def tool():
    found = importlib.util.spec_from_file_location("model_table", ROOT / "tools" / "model_table.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_row_with_pictures_is_what_comes_out():
    """Two of them always: one that is fast and packed, one that is neither."""
    table = tool()
    assert set(table.table(sees=True)) == set(EYES)
    for kind in ("qwen2_5_vl", "qwen3_5"):
        name, sampler, update, gap = table.outcome(kind, sees=True)
        assert [name, sampler, update] == table.table(sees=True)[kind][:3] and float(gap) < 1e-4


def test_no_row_is_our_fault_and_all_gaps_are_small():
    rows, seen = tool().table(), tool().table(sees=True)
    assert set(SOME) <= set(rows) <= set(FAMILIES)
    assert all(float(cells[3]) < 1e-4 for cells in seen.values())
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
