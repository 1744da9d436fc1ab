"""Recorded completions as lines for other programs: conversations to fine-tune on, to read or to count."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from covey.errors import ConfigError
from covey.runs.record.episodes import read_messages, read_own_prompt
from covey.runs.record.json_text import Json
from covey.runs.record.picture_files import picture_path
from covey.sample.prompts import TOOLS_COLUMN, named_tools
from covey.types import Message, PromptContent, prefill_of

if TYPE_CHECKING:
    from covey.runs import Run

ExportFormat = Literal["messages", "prompt_completion"]
"""One conversation per line; or its prompt and its completion apart, as text where the prompts are text."""

FACTS = ("step", "group", "index", "row", "task")
"""What tells a completion from others; copied from the record."""


@dataclass
class Export:
    """The recorded completions that are wanted, as JSON. Iterating reads the record; counts are those of the last time."""

    run: Run
    format: ExportFormat = "messages"
    steps: Container[int] | None = None
    """Only these steps; None: all."""
    min_reward: float | None = None
    """Only completions whose total is at least so much; None: all, unscored ones too."""
    written: int = 0
    without_text: int = 0
    """Wanted, and not recorded (`record_completions`)."""

    def __iter__(self) -> Iterator[Json]:
        """Yield one object per completion, in the order of the record.

        Raises:
            ConfigError: messages are wanted, and the prompts are text.
        """
        self.written = self.without_text = 0
        for table in self.run.group_tables():
            for row in table.to_pylist():
                is_of_steps = self.steps is None or row["step"] in self.steps
                total, least = row["total"], self.min_reward
                if not is_of_steps or not (least is None or (total is not None and total >= least)):
                    continue
                if row["completion"] is None:
                    self.without_text += 1
                    continue
                self.written += 1
                yield self._line(row)

    def _line(self, row: Json) -> Json:
        if self.format == "messages" and not row["chat"]:
            raise ConfigError(
                f"Prompts of run {self.run.name!r} are text, and no messages. Export prompt and completion apart: "
                "--format prompt_completion."
            )
        prompt, completion = parts_of(row)
        line: Json = {"prompt": prompt, "completion": completion}
        if self.format == "messages":
            line = {"messages": [*prompt, *completion]}
        if tools := self._tools(json.loads(row["columns"]) if row["columns"] else {}):
            line["tools"] = tools
        if row.get("pictures"):
            entries: list[Json] = json.loads(row["pictures"])
            paths = [
                [picture_path(self.run.folder, e["digest"], full) for full in (True, False)] for e in entries
            ]
            held = [next((str(path) for path in both if path.exists()), None) for both in paths]
            line["pictures"] = [{**e, "file": file} for e, file in zip(entries, held, strict=True)]
        return line | {"reward": row["total"], "finish": row["finish"]} | {name: row[name] for name in FACTS}

    def _tools(self, columns: Mapping[str, object]) -> list[object]:
        """Return the schemas that the policy read with this prompt: those of its environment, of the names in its column `tools`."""
        named, environment = named_tools(columns.get(TOOLS_COLUMN)), columns.get("environment")
        return [
            tool["schema"]
            for name, tool in self.run.header.get("tools", {}).items()
            if (named is None or name in named) and environment in tool.get("environments", [environment])
        ]


def parts_of(row: Json) -> tuple[PromptContent, PromptContent]:
    """Return prompt and completion of a recorded row: two texts, or two lists of messages.

    An answer that the prompt begins is one message, of the completion.
    """
    own = read_own_prompt(row)
    if not row["chat"]:
        return own if own is not None else row["prompt"], row["completion"]
    prompt: list[Message] = json.loads(row["prompt"]) if own is None else list(own)  # type: ignore[arg-type]
    messages = read_messages(row)
    if messages is not None:
        return prompt, list(messages)
    prefill = prefill_of(prompt)
    said: list[Message] = [{"role": "assistant", "content": prefill + row["completion"]}]
    return (prompt[:-1] if prefill else prompt), said
