"""Text of others, made fit for people: what it hides is made visible, what is secret is blanked, what is endless is cut.

Completions, answers of servers and messages of exceptions are hostile input: terminals obey escape codes, readers trust what
they see, records are shown around. Control characters, marks that turn the direction of writing, characters of no width,
tags and lone surrogates become visible. Newlines and tabs stay; letters of any script stay.
"""

from __future__ import annotations

import html
import re
import sys
from typing import TextIO

from covey.text.secrets import without_secrets

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners and fillers without a picture
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # no width, separators, direction
    "\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)


_CONTROLS = (
    "NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "TAB", "LF", "VT", "FF", "CR", "SO", "SI",
    "DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US",
)  # fmt: skip
"""Names of the characters from U+0000 to U+001F."""

_NAMED = {chr(code): f"⟨{name}⟩" for code, name in enumerate(_CONTROLS)}


def visible(text: str) -> str:
    """Return the text with everything hidden made visible: `⟨ESC⟩` for control characters, `⟨U+202E⟩` for all others."""
    return _HIDDEN.sub(lambda match: _NAMED.get(match[0]) or f"⟨U+{ord(match[0]):04X}⟩", text)


def clean(text: object) -> str:
    """Return a text of others as it may be shown: secrets blanked, everything hidden made visible."""
    return visible(without_secrets(str(text)))


def excerpt(text: str, length: int) -> str:
    """Return the start of a text on one line, at most `length` characters, secrets blanked, everything hidden made visible."""
    start = visible(" ".join(without_secrets(text[: 8 * length]).split()))
    return start if len(start) <= length else start[: max(0, length - 1)] + "…"


def fit(text: object, length: int = 4_000) -> str:
    """Return a text for a terminal or a message: secrets blanked, everything hidden made visible, cut in its middle."""
    shown = str(text)
    if len(shown) > 8 * length:
        shown = f"{shown[: 4 * length]} … {shown[-4 * length :]}"  # of what is endless, only this much is looked at
    shown = clean(shown)
    if len(shown) <= length:
        return shown
    half = length // 2
    return f"{shown[:half]} … [{len(shown) - 2 * half} characters left out] … {shown[-half:]}"


def made_fit(error: BaseException) -> BaseException:
    """Blank the secrets in an exception and in those behind it, and make visible what they hide: Python prints them as they are."""
    found: BaseException | None = error
    while found is not None:
        found.args = tuple(clean(part) if isinstance(part, str) else part for part in found.args)
        found = found.__cause__ or found.__context__
    return error


def show(text: object = "", file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print a text, on standard output by default: secrets blanked, nothing hidden, `?` for what the stream's encoding lacks.

    All that Covey prints comes through here or through `show_json`; tables go through `visible`, cell by cell.
    """
    stream = file or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = clean(text).encode(encoding, "replace").decode(encoding)
    print(shown, file=stream, end=end, flush=flush)


def show_json(json_text: str) -> None:
    """Print JSON with secrets blanked."""
    write_json(without_secrets(json_text))


def write_json(json_text: str, file: TextIO | None = None) -> None:
    """Print JSON as data, with everything hidden in it as escapes: it means the same, and no terminal obeys it."""

    def escape(hidden: re.Match[str]) -> str:  # beyond U+FFFF by the two halves that UTF-16 has for it
        units = hidden[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))

    print(_HIDDEN.sub(escape, json_text), file=file or sys.stdout, flush=True)


def as_html(text: object) -> str:
    """Return a text for HTML, in elements and in attributes: no markup in it is obeyed, nothing is hidden."""
    return html.escape(clean(text))


_MARKDOWN = re.compile(r"[&<>`*\[\]|\\~$\"'@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//)")
"""What Markdown would obey within a line: emphasis, links, pictures, code, tables, formulas, HTML."""


def as_markdown(text: object) -> str:
    """Return a text for a line or a table of Markdown: no markup in it is obeyed, nothing is hidden, lines end in `<br>`."""
    return _MARKDOWN.sub(lambda mark: f"&#{ord(mark[0])};", clean(text)).replace("\n", "<br>")
