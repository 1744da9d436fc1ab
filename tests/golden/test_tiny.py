"""The bundled policy takes the same 20 steps as it did when the file was written; see tools/golden_run.py.

Origin of the numbers: tools/golden_run.py at 1a7f627, x86-64 with AVX2, torch 2.13 CPU, one thread.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from golden_run import COLUMNS, STEPS, TOKENS, golden_rows, read_golden

GOLDEN = Path(__file__).parent / "tiny.txt"

ROUNDING = 1e-3
"""Kernels of other processors (AVX2, AVX-512, AMX) add in another order: seen are 4e-5 of a number, for the same tokens."""


def test_twenty_steps_of_the_tiny_policy_are_the_golden_ones(tmp_path):
    golden, taken = read_golden(GOLDEN.read_text()), golden_rows(str(tmp_path))
    assert len(golden) == len(taken) == STEPS
    assert [row[TOKENS] for row in taken] == [row[TOKENS] for row in golden]
    for name in COLUMNS:
        assert [row[name] for row in taken] == pytest.approx([row[name] for row in golden], rel=ROUNDING), (
            name
        )
