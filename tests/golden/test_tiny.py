"""The bundled policy takes the same 20 steps as it did when the file was written; see tools/golden_run.py.

Origin of the numbers: tools/golden_run.py at 1a7f627, x86-64 with AVX-512, torch 2.13 CPU, one thread.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from golden_run import golden_rows, golden_text

GOLDEN = Path(__file__).parent / "tiny.txt"


def test_twenty_steps_of_the_tiny_policy_are_the_golden_ones(tmp_path):
    assert golden_text(golden_rows(str(tmp_path))) == GOLDEN.read_text()
