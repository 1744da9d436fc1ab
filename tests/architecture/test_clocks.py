"""No test holds the clock of the wall to less than a minute: what else the machine does would decide. `tests/clocks.py` has other means."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CLOCKS = {"monotonic", "perf_counter", "time"}
MINUTE = 60
TIMED = {"test_browser.py"}
"""A page's frames, where there is a browser."""


def reads_clock(node: ast.AST, known: set[str]) -> bool:
    """Return whether something is told from a reading of the wall's clock."""
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    read = any(isinstance(f, ast.Attribute) and f.attr in CLOCKS and "time" in ast.unparse(f) for f in calls)
    return read or any(isinstance(n, ast.Name) and n.id in known for n in ast.walk(node))


def hurried(source: str) -> list[str]:
    """Return the assertions of a test that what took a while took less than a minute."""
    tree, found = ast.parse(source), []
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        differences = [
            n for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.value, ast.BinOp)
        ]
        known = {t.id for n in differences if reads_clock(n.value, set()) and isinstance(n.value.op, ast.Sub)
                 for t in n.targets if isinstance(t, ast.Name)}  # fmt: skip
        for n in ast.walk(function):
            if not (
                isinstance(n, ast.Compare) and len(n.ops) == 1 and isinstance(n.ops[0], ast.Lt | ast.LtE)
            ):
                continue
            most = n.comparators[0]
            if isinstance(most, ast.Constant) and most.value < MINUTE and reads_clock(n.left, known):
                found.append(f"line {n.lineno}: {ast.unparse(n)}")
    return found


@pytest.mark.parametrize(
    ("line", "is_hurried"),
    [
        ("assert time.monotonic() - begun < 2", True),
        ("taken = time.perf_counter() - begun\n    assert taken <= 0.5", True),
        ("assert time.monotonic() - begun > 0.3", False),
        ("assert time.monotonic() < end", False),
        ("assert time.thread_time() - begun < 2", False),
        ("assert grade.cpu_seconds < 1", False),
    ],
)
def test_hurry_is_seen(line, is_hurried):
    assert bool(hurried(f"def test():\n    {line}")) == is_hurried


def test_no_test_hurries():
    files = [path for path in TESTS.rglob("*.py") if path.name not in TIMED]
    found = {str(path.relative_to(TESTS)): hurried(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}
