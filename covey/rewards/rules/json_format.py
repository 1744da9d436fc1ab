"""Rewards for answers that are JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from covey.errors import RewardError
from covey.rewards.contract import Failure
from covey.rewards.rules.blocks import only_block
from covey.rewards.rules.extract import after_reasoning, texts_without_echo
from covey.rewards.rules.workers import workers
from covey.rewards.sandbox.limits import check_can_fork
from covey.rewards.sandbox.session import CallFailed
from covey.types import PromptContent

Where = Literal["whole", "fence", "answer"]


class JsonFormat:
    """1.0 where the completion is JSON that satisfies the schema, else 0.0.

    Args:
        schema: a JSON schema, which needs the package jsonschema; without one, any object or array that is not empty.
        where: `whole` takes all that follows the reasoning; `fence` the only fenced block; `answer` the only
            `<answer>` block.
        seconds: processor time per answer where the schema has regular expressions (`pattern`, `format`, ...) or other
            slow keywords, which are applied in worker processes. An answer that takes longer scores 0.

    NaN and Infinity are not JSON, though Python reads them.

    Raises:
        ValueError: the schema is none, or would not be applied in full: an unknown keyword, a format that cannot be
            checked.
        RewardError: the package jsonschema is missing.
    """

    pure = True

    def __init__(self, schema: object = None, where: Where = "whole", seconds: float = 1.0) -> None:
        if where not in ("whole", "fence", "answer"):
            raise ValueError(f"JsonFormat(where={where!r}): where is 'whole', 'fence' or 'answer'.")
        self.where = where
        self.seconds = seconds
        self.schema: str | None = None
        if schema is not None:
            try:
                from covey.rewards.rules.json_schema import read_schema
            except ImportError as error:
                raise RewardError(
                    "JsonFormat(schema=...) needs the package jsonschema: pip install 'covey[json]'."
                ) from error
            self.schema, self.is_slow = read_schema(schema)
            if self.is_slow:
                check_can_fork("JsonFormat applies a schema with regular expressions or other slow keywords")
        self.__name__ = "json_format"

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        **_: object,
    ) -> list[float]:
        answers = [after_reasoning(text) or "" for text in texts_without_echo(completions, prompts)]
        if self.where == "answer":
            answers = [only_block(text, "answer") or "" for text in answers]
        elif self.where == "fence":
            answers = [only_fence(text) or "" for text in answers]
        if self.schema is None:
            return [float(_is_filled(answer)) for answer in answers]
        from covey.rewards.rules.json_schema import satisfies

        if not self.is_slow:
            return [float(satisfies(self.schema, answer)) for answer in answers]
        rows = [(self.schema, answer) for answer in answers]
        pool = workers("covey.rewards.rules.json_schema", "satisfies_within")
        return [_score(result) for result in pool.map(rows, self.seconds)]


def only_fence(text: str) -> str | None:
    """Return the content of the only fenced block of a text; None where there is none, or more than one."""
    parts = text.split("```")
    if len(parts) != 3:
        return None
    first, newline, rest = parts[1].partition("\n")
    return rest if newline and first.strip().isalnum() else parts[1]


def read_json(text: str) -> object:
    """Read JSON as its standard has it: Python would take NaN and Infinity too.

    Raises:
        ValueError, RecursionError, OverflowError: the text is no JSON.
    """
    return json.loads(text, parse_constant=int)  # which raises for "NaN" and "Infinity"


def _is_filled(answer: str) -> bool:
    try:
        value = read_json(answer)
    except (ValueError, RecursionError, OverflowError):
        return False
    return isinstance(value, dict | list) and bool(value)


def _score(result: object) -> float:
    """Time, memory and a crash are the answer's doing; that a worker could not be started is not."""
    if isinstance(result, CallFailed):
        is_ours = result.verdict.status == "infrastructure"
        return Failure(f"the schema could not be applied: {result.verdict.detail}") if is_ours else 0.0
    return float(result is True)
