"""LFM2 and Llama 4: a list of calls in Python's syntax, `[f(a=1), g(b="x")]`, maybe between markers."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Any

from covey.tools.formats.parsed import Format, Schemas, WrittenCall

MARKS = (("<|tool_call_start|>", "<|tool_call_end|>"), ("<|python_start|>", "<|python_end|>"))
BARE = re.compile(r"\s*\[\s*[A-Za-z_][\w.\-]*\s*\(")
WORDS = {"true": True, "false": False, "null": None}
LONGEST = 100_000
"""Characters of a call that are given to Python's parser."""


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return the text around the calls, and the calls."""
    for opens, closes in MARKS:
        if opens in text:
            before, _, rest = text.partition(opens)
            body, mark, after = rest.partition(closes)
            if not mark:
                return before, [WrittenCall(body.strip(), fault=f"it is not closed by {closes}")]
            content, calls = calls_in(after, schemas) if opens in after else (after, [])
            return before + content, [*listed(body), *calls]
    return ("", listed(text)) if BARE.match(text) and text.rstrip().endswith("]") else (text, [])


def listed(body: str) -> list[WrittenCall]:
    """Return the calls of a list; one that cannot be read does not take its neighbours."""
    body = body.strip()
    if body.startswith("[") and body.endswith("]"):
        body = body[1:-1]
    return [read_call(piece.strip()) for piece in pieces(body) if piece.strip()]


def pieces(body: str) -> Iterator[str]:
    """Split a text at its commas outside of quotes and brackets."""
    depth, quote, start, place = 0, "", 0, 0
    while place < len(body):
        sign = body[place]
        if quote:
            place += sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "," and depth <= 0:
            yield body[start:place]
            start = place + 1
        place += 1
    yield body[start:]


def read_call(text: str) -> WrittenCall:
    """Return the call that an expression makes; nothing of it is run."""
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of the policy's backslashes
            node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return WrittenCall(text, fault=f"it is no call f(x=...): {error}")
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return WrittenCall(text, fault="it is no call f(x=...)")
    name = ast.unparse(node.func)
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return WrittenCall(text, name, fault="arguments go by name: f(x=...)")
    try:
        return WrittenCall(text, name, {k.arg or "": literal(k.value) for k in node.keywords})
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        return WrittenCall(text, name, fault=f"its arguments are no plain values: {error}")


def literal(node: ast.expr) -> Any:
    """Return a plain value, with JSON's words for true, false and null too."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id not in WORDS:
            raise ValueError(f"{inner.id} is a name")
    return as_json_value(ast.literal_eval(Plain().visit(node)))


def as_json_value(value: Any) -> Any:
    """Return a value as JSON has it, which every other format writes; raise ValueError for a set, bytes, a key that is no text."""
    match value:
        case list() | tuple():
            return [as_json_value(part) for part in value]
        case dict():
            if not all(isinstance(key, str) for key in value):
                raise ValueError("a key is no text")
            return {key: as_json_value(part) for key, part in value.items()}
        case int() if not isinstance(value, bool):
            str(value)  # written in another base it may have more digits than Python writes
            return value
        case str() | bool() | float() | None:
            return value
    raise ValueError(f"{type(value).__name__} is no value of JSON")


class Plain(ast.NodeTransformer):
    """Puts values in the place of JSON's words."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(WORDS[node.id]), node)


PYTHONIC = Format("pythonic", calls_in)
