"""Secrets: what counts as one, and what is written in its place. Nothing else in Covey decides about either.

A secret is what is named like one (a setting, an option, a variable of the environment), what has the form of a key, and a
login in an address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

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
_SHAPED = re.compile(r"\b(sk-|hf_|gh[a-z]_|github_pat_|xox[a-z]-|glpat-|nvapi-|AIza|AKIA)[A-Za-z0-9_-]{12,}")
_NAMED_VALUE = re.compile(
    r"((?:api_?key|access_token|auth_token|hub_token|hf_token|secret(?:_key)?|passw(?:or)?d|authorization)\\*[\"']?\s*[=:]\s*\\*[\"']?"
    r"|[?&](?:key|token|sig|signature)=)[^\s,;&\\\"'}\]]+",
    re.IGNORECASE,
)


_SECRET_OPTION = re.compile(
    r"^--?[\w.-]*(token|key|secret|passw(or)?d|passphrase|auth|authorization|credentials?)$", re.IGNORECASE
)
"""An option may end in any of these: a command line is for people, and what is blanked for nothing is no loss."""


def is_secret_name(name: str) -> bool:
    """Return whether what has this name is a secret: tokens of hubs, keys of interfaces, passwords. `eos_token` is none."""
    return _SECRET_NAME.search(name.strip()) is not None


@lru_cache(maxsize=1024)
def is_secret_variable(name: str) -> bool:
    """Return whether a variable of the environment with this name holds a secret."""
    return _SECRET_VARIABLE.search(name) is not None


def without_secrets(text: str, *known: str | None) -> str:
    """Return the text with secrets blanked.

    Those are the `known` ones, values of environment variables that are named like secrets, logins in addresses, and what has
    the form of a key.
    """
    secrets = (
        value for name, value in os.environ.items() if is_secret_variable(name) and value[:1] not in "/."
    )
    found = {secret.strip() for secret in (*secrets, *known) if secret}
    for secret in sorted(found, key=len, reverse=True):
        if len(secret) >= (MIN_SECRET if secret not in known else 4):
            text = text.replace(secret, BLANK)
    for pattern in (_LOGIN, _SHAPED):
        text = pattern.sub(BLANK, text)
    return _NAMED_VALUE.sub(rf"\1{BLANK}", _BEARER.sub(rf"\1 {BLANK}", text))


def blanked(value: Any) -> Any:
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
    if not isinstance(value, str):
        return value
    clean = without_secrets(value)
    return clean if clean != value else value  # an enumeration of texts stays one


def without_secret_entries(value: object) -> object:
    """Return settings without the entries that are named like secrets, and with secrets in texts blanked: they can be read again."""
    if isinstance(value, Mapping):
        kept = {name: inner for name, inner in value.items() if not (inner and is_secret_name(str(name)))}
        return {name: without_secret_entries(inner) for name, inner in kept.items()}
    if isinstance(value, list | tuple):
        return [without_secret_entries(inner) for inner in value]
    return blanked(value)


LEFT_OUT: ContextVar[bool] = ContextVar("LEFT_OUT", default=False)
"""Whether settings are pickled for a file now."""


@contextmanager
def left_out_of_files() -> Iterator[None]:
    """Let settings that are pickled meanwhile leave out their secrets."""
    before = LEFT_OUT.set(True)
    try:
        yield
    finally:
        LEFT_OUT.reset(before)


def without_secret_options(arguments: Sequence[str]) -> list[str]:
    """Return a command line with secrets blanked: `--hub-token=…`, `--api-key …`, `--set hub_token=…`, and what has their form."""
    kept: list[str] = []
    for i, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        inner, has_inner, _ = value.partition("=")  # of --set=hub_token=…
        follows_secret = i and "=" not in arguments[i - 1] and _SECRET_OPTION.match(arguments[i - 1])
        if separator and value and (_SECRET_OPTION.match(name) or is_secret_name(name.lstrip("-"))):
            kept.append(f"{name}={BLANK}")
        elif has_inner and name.startswith("-") and is_secret_name(inner):
            kept.append(f"{name}={inner}={BLANK}")
        elif follows_secret and not argument.startswith("--"):
            kept.append(BLANK)
        else:
            kept.append(without_secrets(argument))
    return kept
