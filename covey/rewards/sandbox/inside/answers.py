"""Answers of a process that may be hostile: checked here, before anything indexes or formats them.

Whoever receives an answer matches what `checked` returns, and has a case for `MALFORMED`, as a rule the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

MAX_TEXT = 2_000
"""Characters of a text that is kept: a name or an explanation for people."""

MALFORMED: tuple[object, ...] = ("malformed",)
"""Stands for an answer of another form. No table below has this kind, so it cannot be sent."""

NO_ANSWER = "an answer that is none"
"""The detail of a verdict on a malformed answer."""

Field = Literal["text", "value", "changed"]
"""`text` is a str, `value` is anything, `changed` is a list or None."""

CANDIDATE: Mapping[str, tuple[Field, ...]] = {
    "ready": ("value",),
    "ended": (),
    "value": ("value", "changed"),
    "raised": ("text", "text"),
    "opaque": ("text",),
    "missing": ("text",),
}
"""Answers of `covey.rewards.sandbox.inside.candidate`: the fields that follow each kind."""

TESTS: Mapping[str, tuple[Field, ...]] = {
    "passed": (),
    "raised": ("text", "text"),
    "failed": ("text",),
    "unsupported": ("text",),
    "gone": ("text",),
    "broken": ("text",),
}
"""Answers of `covey.rewards.sandbox.inside.verdict`."""


def checked(message: object, forms: Mapping[str, tuple[Field, ...]] = CANDIDATE) -> tuple[object, ...]:
    """Return an answer of exactly one of the forms, its texts made safe to print; `MALFORMED` for anything else.

    Texts are cut, and lone surrogates in them, which no stream takes, are written as escapes. Integers of any length
    occur only in a `value`, which must not be formatted but by `covey.rewards.sandbox.calls.shortened`.
    """
    if type(message) is not tuple or not message or type(message[0]) is not str:
        return MALFORMED
    kind, *fields = message
    form = forms.get(kind)
    if form is None or len(form) != len(fields):
        return MALFORMED
    if not all(_IS_FIELD[name](field) for name, field in zip(form, fields, strict=True)):
        return MALFORMED
    return (kind, *(safe_text(f) if n == "text" else f for n, f in zip(form, fields, strict=True)))


_IS_FIELD: Mapping[Field, Callable[[object], bool]] = {
    "text": lambda field: type(field) is str,
    "value": lambda field: True,
    "changed": lambda field: field is None or type(field) is list,
}


def safe_text(text: object) -> str:
    """Return a str cut to `MAX_TEXT`, with lone surrogates as escapes."""
    return str(text)[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
