"""Source text → syntax tree, from any thread."""

from __future__ import annotations

import ast
from threading import Lock

_ONE_AT_A_TIME = Lock()


def parsed(source: str) -> ast.Module:
    """`ast.parse`, one call at a time.

    CPython 3.11 counts the depth of the tree that it builds in one place for all threads, and where two build at once may
    raise SystemError (recursion depth mismatch).
    """
    with _ONE_AT_A_TIME:
        return ast.parse(source)
