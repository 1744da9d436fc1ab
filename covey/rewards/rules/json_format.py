"""Rewards for answers that are JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from covey.rewards.rules.blocks import only_block
from covey.rewards.rules.extract import after_reasoning, said_by
from covey.rewards.rules.json_schema import check_schema, validates
from covey.types import PromptContent

Where = Literal["whole", "fence", "answer"]


class JsonFormat:
    """1.0 where the completion is JSON that satisfies the schema, else 0.0.

    Args:
        schema: a JSON schema, see `covey.rewards.rules.json_schema` for the keywords; without one, any object or array
            that is not empty.
        where: `whole` takes all that follows the reasoning; `fence` the only fenced block; `answer` the only
            `<answer>` block.

    NaN and Infinity are not JSON, though Python reads them.

    Raises:
        ValueError: the schema has a keyword that is not supported.
    """

    pure = True

    def __init__(self, schema: Mapping[str, Any] | None = None, where: Where = "whole") -> None:
        if schema is not None:
            check_schema(schema)
        if where not in ("whole", "fence", "answer"):
            raise ValueError(f"JsonFormat(where={where!r}): where is 'whole', 'fence' or 'answer'.")
        self.schema = schema
        self.where = where
        self.__name__ = "json_format"

    def __call__(
        self, completions: Sequence[PromptContent], prompts: Sequence[PromptContent] | None = None, **_: Any
    ) -> list[float]:
        return [float(self._holds(text)) for text in said_by(completions, prompts)]

    def _holds(self, text: str) -> bool:
        try:
            value = json.loads(self._find(text), parse_constant=_refuse)
            return _has_content(value) if self.schema is None else validates(value, self.schema)
        except (ValueError, RecursionError, OverflowError):
            return False

    def _find(self, text: str) -> str:
        after = after_reasoning(text) or ""
        if self.where == "answer":
            return only_block(after, "answer") or ""
        return only_fence(after) or "" if self.where == "fence" else after


def only_fence(text: str) -> str | None:
    """Content of the only fenced block of a text; None where there is none, or more than one."""
    parts = text.split("```")
    if len(parts) != 3:
        return None
    first, newline, rest = parts[1].partition("\n")
    return rest if newline and first.strip().isalnum() else parts[1]


def _has_content(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
