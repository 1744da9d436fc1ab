"""docs/api.md is what the docstrings of the promised names say, and each says enough."""

import inspect
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import api

NAMES = [name for names in api.PROMISED.values() for name in names]


def test_the_page_is_made_from_the_docstrings():
    assert api.PAGE.read_text() == api.page(), "run python tools/api.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_promised_name_is_documented(name):
    found = api.find(name)
    text = inspect.getdoc(found) or ""
    assert len(text) > 20 and text != inspect.getdoc(object), name
    source = inspect.getsource(found)
    if not isinstance(found, type) and "raise " in source:
        assert "Raises:" in text, name
    if inspect.isfunction(found) and len(inspect.signature(found).parameters) >= 3:
        assert "Args:" in text, name
    if inspect.isfunction(found) and "Tensor" in str(inspect.signature(found)):
        assert "shape" in text.lower(), name
