"""Checks of Python code that do not run it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Literal

from covey.rewards.rules.blocks import only_block
from covey.rewards.rules.extract import texts_without_echo
from covey.rewards.syntax import parsed
from covey.types import PromptContent

MAX_CHARACTERS = 20_000
"""Longer code is not parsed: the parser's time and stack are bounded by the text's length."""

Syntax = Literal["fine", "error", "empty", "forbidden"]

_MODULES = """
    abc array bisect calendar cmath collections copy dataclasses datetime decimal enum fractions functools heapq itertools
    json math numbers operator random re statistics string textwrap time typing unicodedata
"""
_NAMES = """
    breakpoint compile delattr eval exec getattr globals input locals open os setattr subprocess sys vars
"""
ALLOWED_MODULES = frozenset(_MODULES.split())
FORBIDDEN_NAMES = frozenset(_NAMES.split())
_FORBIDDEN_WORDS = re.compile(r"\b(?:import|exec|eval|open|os|sys|subprocess)\b")


def code_reward_func(
    completions: Sequence[PromptContent], prompts: Sequence[PromptContent] | None = None, **_: object
) -> list[float]:
    """Score the `<code>` block of each completion as Python; it is read, never run.

    1.0 for code that parses and does something, 0.3 for code with a syntax error, 0.0 without exactly one block, for
    code that does nothing (blank, comments, `pass`), and for code that names what it should not: `exec`, `open`, `os`,
    double underscores, imports beyond a list of harmless modules. To find out whether code is right, run it:
    `covey.rewards.sandbox`.
    """
    worth = {"fine": 1.0, "error": 0.3, "empty": 0.0, "forbidden": 0.0}
    blocks = [only_block(text, "code") for text in texts_without_echo(completions, prompts)]
    return [0.0 if code is None else worth[check_syntax(code)] for code in blocks]


def check_syntax(code: str) -> Syntax:
    """Read a program without running it.

    `empty`: it has only `pass`, and texts and numbers that stand alone. `forbidden`: it names something from `FORBIDDEN_NAMES`, a double underscore, or a module
    beyond `ALLOWED_MODULES`. `error`: it is not Python, or too long or too deep to be read.
    """
    if not code.strip():
        return "empty"
    unreadable: Syntax = "forbidden" if _FORBIDDEN_WORDS.search(code) else "error"
    if len(code) > MAX_CHARACTERS:
        return unreadable
    try:
        with warnings.catch_warnings(action="ignore"):  # odd escapes are not for the user's terminal
            tree = parsed(code.strip("\n"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return unreadable
    if any(_is_forbidden(node) for node in ast.walk(tree)):
        return "forbidden"
    parts = [statement.value if isinstance(statement, ast.Expr) else statement for statement in tree.body]
    return "empty" if all(isinstance(part, ast.Pass | ast.Constant) for part in parts) else "fine"


def _is_forbidden(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] not in ALLOWED_MODULES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] not in ALLOWED_MODULES
    if isinstance(node, ast.Name):
        return node.id in FORBIDDEN_NAMES or (node.id.startswith("__") and node.id != "__name__")
    return isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr != "__init__"
