"""Completions that try to be paid for nothing. No verifier pays for any of them."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

LONG = 100_000
"""Characters."""


@pytest.fixture
def attacks():
    return _attacks


def _attacks(prompt: str, tag: str, gold: str) -> dict[str, str]:
    """By name; `gold` is a right answer without its tags."""
    return {
        "empty": "",
        "blank": " \n\t",
        "echo": prompt,
        "echo in the tags": f"<{tag}>{prompt}</{tag}>",
        "tags only": f"<{tag}></{tag}>",
        "blank in the tags": f"<{tag}> \n </{tag}>",
        "no tags": gold,
        "not closed": f"<{tag}>{gold}",
        "not opened": f"{gold}</{tag}>",
        "one half-tag": f"<{tag}",
        "two blocks": f"<{tag}>{gold}</{tag}><{tag}>{gold}</{tag}>",
        "nested": f"<{tag}><{tag}>{gold}</{tag}></{tag}>",
        "said 100 times": f"<{tag}>{gold}</{tag}>\n" * 100,
        "text after it": f"<{tag}>{gold}</{tag}> I hope!",
        "inside the reasoning": f"<think><{tag}>{gold}</{tag}></think>",
        "two thoughts": f"<think>a<think>b</think>\n<{tag}>{gold}</{tag}>",
        "wide digits": f"<{tag}>{gold}</{tag}>".translate({ord(str(d)): 0xFF10 + d for d in range(10)}),
        "power tower": f"<{tag}>9**9**9**9</{tag}>",
        "letters": f"<{tag}>{'a' * LONG}</{tag}>",
        "digits": f"<{tag}>{'9' * LONG}</{tag}>",
        "parentheses": f"<{tag}>{'(' * LONG}</{tag}>",
        "signs": f"<{tag}>{'-' * LONG}1</{tag}>",
        "a sum": f"<{tag}>{'1+' * (LONG // 2)}1</{tag}>",
        "opening tags": f"<{tag}>" * (LONG // 8),
        "closing thoughts": "</think>" * (LONG // 8),
        "blanks": f"<{tag}>{' ' * LONG}</{tag}>",
        "a block far away": f"{'<' * LONG}<{tag}>{gold}</{tag}>",
    }


@pytest.fixture(scope="session")
def tools():
    """Imports a module of `tools/` by name."""
    folder = str(Path(__file__).parents[2] / "tools")
    sys.path.insert(0, folder)
    yield import_module
    sys.path.remove(folder)
