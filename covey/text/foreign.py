"""Text of others, made fit for people: what it hides is made visible, what is secret is blanked, what is endless is cut.

Completions, answers of servers and messages of exceptions are hostile input: terminals obey escape codes, readers trust what
they see, records are shown around. Control characters, marks that turn the direction of writing, characters of no width,
tags and lone surrogates become visible. Newlines and tabs stay; letters of any script stay.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

BLANK = "(not recorded)"
"""Stands for a secret."""
MIN_SECRET = 6
"""Characters of an environment variable's value that is looked for in texts; shorter ones would blank innocent words."""

_SECRET_NAME = re.compile(
    r"(^|[_.\-])((hub|hf|auth|access|refresh|session|bearer|api|bot|id|github|gitlab|wandb)[_\-]?token|api[_\-]?key"
    r"|(private|access|signing|encryption|account|subscription|license)[_\-]?key|([A-Za-z0-9]+_)*secrets?([_\-]\w+)?|\w*passw(or)?d|passphrase"
    r"|pwd|auth|authorization|credentials?|bearer|cookie)$|^token$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASS(WORD|WD|PHRASE)?|CREDENTIALS?|AUTH)(_|$)|PASSWORD$", re.IGNORECASE
)
_LOGIN = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_SHAPED = re.compile(r"\b(sk-|hf_|gh[a-z]_|github_pat_|xox[a-z]-|glpat-|AKIA)[A-Za-z0-9_-]{12,}")
_NAMED_VALUE = re.compile(
    r"((?:api_?key|access_token|auth_token|hub_token|hf_token|secret(?:_key)?|passw(?:or)?d|authorization)[\"']?\s*[=:]\s*[\"']?"
    r"|[?&](?:key|token|sig|signature)=)[^\s,;&\"'}\]]+",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Return whether what has this name is a secret: tokens of hubs, keys of interfaces, passwords. `eos_token` is none."""
    return _SECRET_NAME.search(name.strip()) is not None


def without_secrets(text: str, *known: str | None) -> str:
    """Return the text with secrets blanked.

    Those are the `known` ones, values of environment variables that are named like secrets, logins in addresses, and what has
    the form of a key.
    """
    secrets = {
        value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name) and value[:1] not in "/."
    }
    found = {secret.strip() for secret in (*secrets, *known) if secret}
    for secret in sorted(found, key=len, reverse=True):
        if len(secret) >= (MIN_SECRET if secret not in known else 4):
            text = text.replace(secret, BLANK)
    for pattern in (_LOGIN, _SHAPED):
        text = pattern.sub(BLANK, text)
    return _NAMED_VALUE.sub(rf"\1{BLANK}", _BEARER.sub(rf"\1 {BLANK}", text))


def blanked(value: object) -> object:
    """Return settings with secrets blanked, by their names and in all texts; mappings and lists at any depth."""
    if isinstance(value, Mapping):
        return {
            str(name): BLANK
            if inner and is_secret_name(str(name)) and not isinstance(inner, bool)
            else blanked(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [blanked(inner) for inner in value]
    return without_secrets(value) if isinstance(value, str) else value


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


def fit(text: object, length: int = 4_000) -> str:
    """Return a text for a terminal or a message: secrets blanked, everything hidden made visible, cut in its middle."""
    shown = str(text)
    if len(shown) > 8 * length:
        shown = f"{shown[: 4 * length]} … {shown[-4 * length :]}"  # of what is endless, only this much is looked at
    shown = visible(without_secrets(shown))
    if len(shown) <= length:
        return shown
    half = length // 2
    return f"{shown[:half]} … [{len(shown) - 2 * half} characters left out] … {shown[-half:]}"
