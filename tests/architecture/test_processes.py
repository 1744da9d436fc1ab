"""What starts processes of one group ends them in one way; any other aborts an interpreter now and then, after all is done."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path for folder in ("covey", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
]
STARTS, LEAVES = "init_process_" + "group(", "destroy_process_" + "group("


@pytest.mark.parametrize("file", [p for p in FILES if STARTS in p.read_text()], ids=lambda p: p.name)
def test_who_starts_a_group_ends_it_by_end_processes(file):
    assert "end_processes()" in file.read_text()


def test_nobody_else_leaves_the_group():
    assert [p.name for p in FILES if LEAVES in p.read_text()] == ["distributed.py"]
