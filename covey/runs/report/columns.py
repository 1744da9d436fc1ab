"""Completions in a form that a browser can hold by the hundred thousand: numbers in columns, prompts once each.

Numbers of all completions are one block of bytes, typed arrays side by side (`pack`). A column points to the prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from covey.rewards.text import last_text_of
from covey.runs.record.episodes import read_messages, read_own_prompt, read_turn_entries, written_lengths
from covey.types import FinishReason
from covey.vision.marks import word, worded

if TYPE_CHECKING:
    import pyarrow as pa

EXCERPT = 160
"""Characters of a prompt that lists show."""

STATUSES = ("value", "not_applicable", "gated", "failed")
FINISHES: tuple[str, ...] = get_args(FinishReason)
NO_TEXT, HAS_TEXT, LEFT_OUT = 0, 1, 2
"""State of a completion's text: not recorded, here, or recorded but left out of this file for its size."""

_TYPES = {"i4": "<i4", "f4": "<f4", "u1": "u1"}

Column = tuple[str, NDArray[np.generic]]
"""A type and the values."""

Entry = dict[str, object]
"""A completion or a prompt as the page shows it, as JSON."""


@dataclass
class ColumnIndex:
    """Tasks and prompts by number. A number stays while completions are added."""

    tasks: dict[str, int] = field(default_factory=dict)
    prompts: dict[tuple[int, str | None], int] = field(default_factory=dict)
    excerpts: list[str] = field(default_factory=list)
    """The start of the last thing that each prompt says."""
    entries: list[Entry] = field(default_factory=list)

    def number_prompt(
        self, row: int, text: str | None, chat: bool, columns: str | None, pictures: str | None
    ) -> int:
        """Return the number of a prompt. Without texts, prompts are told apart by their row."""
        # A text does not name its pictures, as a chat does.
        key = (row, text if chat or not pictures else f"{text}{pictures}")
        if key not in self.prompts:
            self.prompts[key] = len(self.prompts)
            shown = [{"digest": p["digest"], "size": p["size"]} for p in json.loads(pictures or "[]")]
            words = "" if chat else "".join(f"{word(p)} " for p in shown)
            content = json.loads(text) if chat and text is not None else text
            kept = {"prompt": content, "columns": json.loads(columns) if columns else {}}
            self.entries.append({} if text is None else kept | ({"pictures": shown} if shown else {}))
            self.excerpts.append(words + prompt_excerpt(content))
        return self.prompts[key]


def prompt_excerpt(content: str | list[object] | None) -> str:
    """Return the start of a prompt's text, or of the last message of its user."""
    if isinstance(content, list):
        messages = [m for m in content if isinstance(m, dict)]
        users = [m for m in messages if m.get("role") == "user"] or messages
        content = last_text_of(worded(users[-1:]))
    return " ".join((content or "")[: 4 * EXCERPT].split())[:EXCERPT]


def number_columns(rows: pa.Table, rewards: Sequence[str], index: ColumnIndex) -> dict[str, Column]:
    """Return the numbers of some completions, name → type and values; tasks and prompts are numbered by the index."""
    columns: dict[str, Column] = {}
    for name in ("step", "group", "index", "row", "prompt_tokens"):
        columns[name] = ("i4", _integers(rows, name))
    columns["tokens"] = ("i4", written_lengths(rows).astype("<i4"))
    for name in ("num_turns", "calls", "call_failures"):
        columns[name] = ("i4", _integers(rows, name))
    tasks = [
        -1 if t is None else index.tasks.setdefault(t, len(index.tasks)) for t in rows["task"].to_pylist()
    ]
    columns["task"] = ("i4", np.array(tasks, dtype="<i4"))
    columns["finish"] = (
        "u1",
        np.array([FINISHES.index(f) if f in FINISHES else 0 for f in rows["finish"].to_pylist()], dtype="u1"),
    )
    shared = (
        rows[name].to_pylist() if name in rows.column_names else [None] * rows.num_rows
        for name in ("row", "prompt", "chat", "columns", "pictures")
    )
    prompts = [index.number_prompt(*values) for values in zip(*shared, strict=True)]
    columns["prompt"] = ("i4", np.array(prompts, dtype="<i4"))
    columns["text"] = ("u1", np.asarray(rows["completion"].is_valid()).astype("u1"))
    for name in ("total", "advantage", "logprob"):
        columns[name] = ("f4", _floats(rows, name))
    for reward in rewards:
        columns[f"score/{reward}"] = ("f4", _floats(rows, f"score/{reward}"))
        name, none = f"status/{reward}", STATUSES.index("not_applicable")
        statuses = rows[name].to_pylist() if name in rows.column_names else [None] * rows.num_rows
        numbers = [STATUSES.index(s) if s in STATUSES else none for s in statuses]
        columns[name] = ("u1", np.array(numbers, dtype="u1"))
    return columns


def text_rows(rows: pa.Table) -> list[Entry]:
    """Return the part of each completion that is shown beside its numbers: text, messages and turns, extras, errors."""
    found: list[Entry] = [{} if text is None else {"text": text} for text in rows["completion"].to_pylist()]
    if "turns" in rows.column_names or "messages" in rows.column_names:
        own = [n for n in ("chat", "messages", "turns", "own_prompt") if n in rows.column_names]
        for entry, row in zip(found, rows.select(own).to_pylist(), strict=True):
            entry |= _episode_entry(row)
    for name in rows.column_names:
        family, _, key = name.partition("/")
        if family not in ("extra", "error"):
            continue
        for entry, value in zip(found, rows[name].to_pylist(), strict=True):
            if value is not None:
                named = entry.setdefault(family, {})
                assert isinstance(named, dict)
                named[key] = json.loads(value) if family == "extra" else value
    return found


def _episode_entry(row: Mapping[str, object]) -> Entry:
    """Return the part of an episode that is shown: who said what, each turn, the prompt where it is its own."""
    messages = read_messages(row)
    entry: Entry = {
        "messages": None if messages is None else [m for m in messages if isinstance(m, dict)],
        "turns": read_turn_entries(row),
        "prompt": read_own_prompt(row),
    }
    return {name: value for name, value in entry.items() if value is not None}


def pack(columns: Mapping[str, Column], **facts: object) -> bytes:
    """Return columns as one block: the length of a directory (4 bytes, little-endian), the directory as JSON, the arrays.

    The directory says of each column its type, offset and length; offsets count from the end of the directory and are
    multiples of 4.
    """
    directory: list[tuple[str, str, int, int]] = []
    parts, offset = [], 0
    for name, (kind, values) in columns.items():
        data = np.ascontiguousarray(values, dtype=_TYPES[kind]).tobytes()
        directory.append((name, kind, offset, len(values)))
        padding = -len(data) % 4
        parts += [data, b"\0" * padding]
        offset += len(data) + padding
    head = json.dumps({**facts, "columns": directory}).encode()
    head += b" " * (-len(head) % 4)
    return len(head).to_bytes(4, "little") + head + b"".join(parts)


def _integers(rows: pa.Table, name: str) -> NDArray[np.int32]:
    """Return values with -1 for none; of a column that a segment does not have, -1 throughout."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, -1, dtype="<i4")
    return np.asarray(rows[name].fill_null(-1).to_numpy(), dtype="<i4")


def _floats(rows: pa.Table, name: str) -> NDArray[np.float32]:
    """Return values with NaN for none; a reward that a segment does not know is NaN throughout."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, np.nan, dtype="<f4")
    return np.asarray(rows[name].to_numpy(zero_copy_only=False), dtype="<f4")
