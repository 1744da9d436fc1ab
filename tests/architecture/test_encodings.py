"""Files are read and written as UTF-8 on every machine: no text is opened in the machine's own encoding."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import covey

ROOT = Path(covey.__file__).parent
OPENS = {"open", "fdopen", "read_text", "write_text", "NamedTemporaryFile", "TemporaryFile"}
OWN = {"RunWriter.open", "runs.open", "webbrowser.open", "Image.open", "os.open", "resolving.read_text"}
"""Calls that open no text: a record, a browser, a picture, a descriptor, a function of Covey's."""


def text_without_encoding(tree: ast.AST) -> list[int]:
    """Return the lines that open text, or read a program's output as text, and name no encoding."""
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        of = getattr(owner, "attr", getattr(owner, "id", ""))
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        modes = [v.value for v in [*call.args, *given.values()] if isinstance(v, ast.Constant)]
        binary = any(isinstance(m, str) and "b" in m and set(m) <= set("rwxab+") for m in modes)
        opens = name in OPENS and f"{of}.{name}" not in OWN and not binary
        flags = (given.get(name) for name in ("text", "universal_newlines"))
        as_text = any(isinstance(flag, ast.Constant) and flag.value is True for flag in flags)
        if (opens or as_text or name == "TextIOWrapper") and "encoding" not in given:
            found.append(call.lineno)
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_text_is_opened_with_its_encoding(path: Path):
    assert text_without_encoding(ast.parse(path.read_text(encoding="utf-8"))) == []


LINES = [
    "open(p)", "open(p, 'w')", "p.read_text()", "p.write_text(t)", "p.open()", "run(a, text=True)", "io.TextIOWrapper(b)",
    "os.fdopen(3, 'w')",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_the_law_sees_text_without_an_encoding(line: str):
    assert text_without_encoding(ast.parse(line)) == [1]
    assert text_without_encoding(ast.parse("open(p, 'rb'); p.read_text(encoding='utf-8'); run(a)")) == []
