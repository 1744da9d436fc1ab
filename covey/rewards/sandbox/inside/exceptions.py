"""Exceptions across processes: name of a builtin class and text on the way, an exception that ends nothing on arrival."""

from __future__ import annotations

import builtins
import contextlib

MAX_TEXT = 500

QUIET = frozenset({"IndexError", "AttributeError", "LookupError"})
"""Python takes them for "no more items" or "no such attribute" in places that catch them without a word."""
_NEVER = frozenset({"StopIteration", "StopAsyncIteration"})
"""In `map`, `zip` or `all` they would end the tests' own loops early, and so pass them."""
_EXCEPTIONS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in _NEVER
}


class CandidateError(Exception):
    """An exception of a class that the candidate made, or of one that Python takes for no error."""


def describe(error: BaseException) -> tuple[str, str]:
    """Return type and text of an exception, whatever its class does when asked."""
    if type(error) is CandidateError:
        kind, _, text = str(error).partition(": ")
        return kind, text
    kinds = type(error).__mro__
    builtin = next((k.__name__ for k in kinds if k.__module__ == "builtins"), "BaseException")
    try:
        text = str(error.code if isinstance(error, SystemExit) else error)[:MAX_TEXT]
        text = text if type(text) is str else ""
    except BaseException:
        text = ""
    return builtin, text


def exception_of(kind: str, text: str, named: str) -> Exception:
    """Return the exception that another process raised; one of a builtin class where that ends nothing without a word.

    Args:
        named: the source of the tests. An exception of `QUIET` is itself where they name it.
    """
    made: Exception | None = None
    if kind in _EXCEPTIONS and (kind not in QUIET or kind in named or "LookupError" in named):
        with contextlib.suppress(TypeError):  # it wants other arguments
            made = _EXCEPTIONS[kind](text)
    made = made or CandidateError(f"{kind}: {text}")
    made.crossed = True  # type: ignore[attr-defined]
    return made
