"""Every setting of a recipe's `train` and `model`, with its kind, its default and what it does."""

from __future__ import annotations

import textwrap
from dataclasses import fields
from enum import Enum
from typing import Any

from covey.config import GRPOConfig, ModelConfig
from covey.config.validation import describe, kinds_of
from covey.recipes.settings import default_of

MOST_WORDS = 60
"""Longer descriptions are cut; those of transformers fill pages."""


def listing(word: str = "", width: int = 100) -> list[str]:
    """Lines about the settings whose name or description has a word; all of them by default."""
    lines: list[str] = []
    for section, cls in (("model", ModelConfig), ("train", GRPOConfig)):
        found = [f for f in fields(cls) if f.init and word.lower() in f"{f.name} {_help(f)}".lower()]
        if found:
            lines.append(f"{section}:")
        for field in found:
            lines.append(
                f"  {field.name}: {_default(default_of(field))}   # {describe(kinds_of(cls)[field.name])}"
            )
            lines += textwrap.wrap(_help(field), width, initial_indent="      ", subsequent_indent="      ")
    return lines


def _help(field: Any) -> str:
    words = str(field.metadata.get("help", "")).split()
    return " ".join(words[:MOST_WORDS]) + (" ..." if len(words) > MOST_WORDS else "")


def _default(value: Any) -> str:
    """A default as YAML writes it."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
