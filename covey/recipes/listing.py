"""Every setting of a recipe's `train` and `model`, with its kind, its default and what it does."""

from __future__ import annotations

import textwrap
from dataclasses import fields
from enum import Enum

from covey.config import GRPOConfig, ModelConfig
from covey.config.validation import describe, kinds_of
from covey.recipes.settings import default_of

MOST_WORDS = 60
"""Longer descriptions are cut; those of transformers fill pages."""


def listing(word: str = "", width: int = 100) -> list[str]:
    """Return lines about the settings whose name or description has a word; all of them by default."""
    lines: list[str] = []
    for section, cls in (("model", ModelConfig), ("train", GRPOConfig)):
        found: list[str] = []
        for field in fields(cls):
            words = str(field.metadata.get("help", "")).split()
            text = " ".join(words[:MOST_WORDS]) + (" ..." if len(words) > MOST_WORDS else "")
            if not field.init or word.lower() not in f"{field.name} {text}".lower():
                continue
            default = default_of(field)
            if isinstance(default, Enum):
                default = default.value
            if isinstance(default, bool) or default is None:  # as YAML writes it
                default = {True: "true", False: "false", None: "null"}[default]
            found.append(f"  {field.name}: {default}   # {describe(kinds_of(cls)[field.name])}")
            found += textwrap.wrap(text, width, initial_indent="      ", subsequent_indent="      ")
        if found:
            lines += [f"{section}:", *found]
    return lines
