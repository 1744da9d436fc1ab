"""The function that a process of its own holds, of a reward or of a tool."""

from __future__ import annotations

import pickle
from typing import Any

held: Any = None


def load(payload: bytes) -> str:
    """Keep a function; return what went wrong, empty where nothing did."""
    global held
    try:
        held = pickle.loads(payload)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
