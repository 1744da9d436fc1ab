"""Completions in a form that a browser can hold by the hundred thousand: numbers in columns, texts in chunks.

Numbers of all completions are one block of bytes, typed arrays side by side (`pack`). Texts are cut into chunks of
`CHUNK` rows, which the page fetches when it shows them. Prompts are held once each; a column points to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey.types import message_text

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 500
"""Completions per chunk of texts, and prompts per chunk of prompts."""

EXCERPT = 160
"""Characters of a prompt that lists show."""

STATUSES = ("value", "not_applicable", "gated", "failed")
FINISHES = ("stop", "stop_string", "length")
NO_TEXT, HAS_TEXT, LEFT_OUT = 0, 1, 2
"""Whether a completion's text can be shown: not recorded, here, or recorded but left out of this file for its size."""

_TYPES: dict[str, Any] = {"i4": np.dtype("<i4"), "f4": np.dtype("<f4"), "u1": np.dtype("u1")}

Column = tuple[str, NDArray[Any]]
"""A type and the values."""


@dataclass
class Index:
    """What stays the same while completions are added: numbers of tasks and of prompts, names of rewards."""

    rewards: list[str]
    tasks: dict[str, int] = field(default_factory=dict)
    prompts: dict[tuple[int, str | None], int] = field(default_factory=dict)
    excerpts: list[str] = field(default_factory=list)

    def task(self, name: str | None) -> int:
        """Number of a task; -1 for none."""
        return -1 if name is None else self.tasks.setdefault(name, len(self.tasks))

    def prompt(self, row: int, text: str | None, chat: bool) -> int:
        """Number of a prompt. Without texts, prompts are told apart by their row."""
        key = (row, text)
        if key not in self.prompts:
            self.prompts[key] = len(self.prompts)
            self.excerpts.append(prompt_excerpt(text, chat))
        return self.prompts[key]


def number_columns(rows: pa.Table, index: Index) -> dict[str, Column]:
    """The numbers of some completions: name → type and values."""
    columns: dict[str, Column] = {
        name: ("i4", _integers(rows[name]))
        for name in ("step", "group", "index", "row", "tokens", "prompt_tokens")
    }
    tasks, finishes = rows["task"].to_pylist(), rows["finish"].to_pylist()
    columns["task"] = ("i4", np.array([index.task(t) for t in tasks], dtype="<i4"))
    columns["finish"] = ("u1", np.array([FINISHES.index(f) for f in finishes], dtype="u1"))
    columns["prompt"] = ("i4", np.array(_prompt_numbers(rows, index), dtype="<i4"))
    columns["text"] = ("u1", np.asarray(rows["completion"].is_valid()).astype("u1"))
    for name in ("total", "advantage", "logprob"):
        columns[name] = ("f4", _floats(rows, name))
    for reward in index.rewards:
        columns[f"score/{reward}"] = ("f4", _floats(rows, f"score/{reward}"))
        columns[f"status/{reward}"] = ("u1", _statuses(rows, f"status/{reward}"))
    return columns


def text_rows(rows: pa.Table, rewards: Sequence[str]) -> list[dict[str, Any]]:
    """What is shown of each completion beside its numbers: text, extras, errors."""
    texts = rows["completion"].to_pylist()
    found: list[dict[str, Any]] = [{} if text is None else {"text": text} for text in texts]
    for name in rows.column_names:
        family, _, key = name.partition("/")
        if family not in ("extra", "error"):
            continue
        for entry, value in zip(found, rows[name].to_pylist(), strict=True):
            if value is not None:
                entry.setdefault(family, {})[key] = json.loads(value) if family == "extra" else value
    return found


def prompt_rows(rows: pa.Table, index: Index, known: int) -> list[dict[str, Any]]:
    """Prompts that were numbered `known` or higher, in the order of their numbers."""
    if "prompt" not in rows.column_names:
        return []
    found: dict[int, dict[str, Any]] = {}
    shared = zip(
        rows["row"].to_pylist(), rows["prompt"].to_pylist(), rows["chat"].to_pylist(), rows["columns"].to_pylist(),
        strict=True,
    )  # fmt: skip
    for row, text, chat, columns in shared:
        number = index.prompts[(row, text)]
        if number >= known and number not in found:
            found[number] = prompt_entry(text, chat, columns)
    return [found[number] for number in sorted(found)]


def prompt_entry(text: str | None, chat: bool, columns: str | None) -> dict[str, Any]:
    """A prompt as the page shows it."""
    if text is None:
        return {}
    return {"prompt": json.loads(text) if chat else text, "columns": json.loads(columns) if columns else {}}


def prompt_excerpt(text: str | None, chat: bool) -> str:
    """The start of the last thing that the prompt says."""
    if text is None:
        return ""
    if chat:
        messages = [m for m in json.loads(text) if isinstance(m, dict)]
        users = [m for m in messages if m.get("role") == "user"] or messages
        text = message_text(users[-1]) if users else ""
    return " ".join(text[: 4 * EXCERPT].split())[:EXCERPT]


def pack(columns: Mapping[str, Column], **facts: Any) -> bytes:
    """Columns as one block: the length of a directory (4 bytes, little-endian), the directory as JSON, the arrays.

    The directory says of each column its type, offset and length; offsets count from the end of the directory and are
    multiples of 4.
    """
    directory: dict[str, Any] = {**facts, "columns": []}
    parts, offset = [], 0
    for name, (kind, values) in columns.items():
        data = np.ascontiguousarray(values, dtype=_TYPES[kind]).tobytes()
        directory["columns"].append([name, kind, offset, len(values)])
        padding = -len(data) % 4
        parts += [data, b"\0" * padding]
        offset += len(data) + padding
    head = json.dumps(directory).encode()
    head += b" " * (-len(head) % 4)
    return len(head).to_bytes(4, "little") + head + b"".join(parts)


def concatenate(
    parts: Iterable[Mapping[str, Column]],
) -> dict[str, Column]:
    """Columns of several tables one after another."""
    listed = list(parts)
    if not listed:
        return {}
    return {
        name: (kind, np.concatenate([p[name][1] for p in listed])) for name, (kind, _) in listed[0].items()
    }


def chunks(rows: Iterable[dict[str, Any]], size: int = CHUNK) -> Iterator[list[dict[str, Any]]]:
    """Cut a stream of rows into lists of `size`; the last may be shorter."""
    held: list[dict[str, Any]] = []
    for row in rows:
        held.append(row)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def _prompt_numbers(rows: pa.Table, index: Index) -> list[int]:
    shared = zip(rows["row"].to_pylist(), rows["prompt"].to_pylist(), rows["chat"].to_pylist(), strict=True)
    return [index.prompt(row, text, chat) for row, text, chat in shared]


def _integers(column: pa.ChunkedArray) -> NDArray[np.int32]:
    return np.asarray(column.fill_null(-1).to_numpy(), dtype="<i4")


def _floats(rows: pa.Table, name: str) -> NDArray[np.float32]:
    """Values with NaN for none; a reward that a segment does not know is NaN throughout."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, np.nan, dtype="<f4")
    return np.asarray(rows[name].to_numpy(zero_copy_only=False), dtype="<f4")


def _statuses(rows: pa.Table, name: str) -> NDArray[np.uint8]:
    if name not in rows.column_names:
        return np.full(rows.num_rows, STATUSES.index("not_applicable"), dtype="u1")
    return np.array([STATUSES.index(s) if s else 1 for s in rows[name].to_pylist()], dtype="u1")
