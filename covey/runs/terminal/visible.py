"""Hidden characters of a text, made visible. Completions are hostile input: terminals obey escape codes, readers trust what they see.

Control characters, marks that turn the direction of writing, characters of no width, tags and lone surrogates become
visible. Newlines and tabs stay; letters of any script stay.
"""

from __future__ import annotations

import re

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


def excerpt(text: str, length: int) -> str:
    """Return the start of a text on one line, at most `length` characters, everything hidden made visible."""
    start = visible(" ".join(text[: 4 * length].split()))
    return start if len(start) <= length else start[: max(0, length - 1)] + "…"
