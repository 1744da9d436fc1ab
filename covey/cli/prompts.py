"""Prompts of a command: from a file, from standard input, or from the command line itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.errors import DatasetError

Row = dict[str, Any]
"""A row as a dataset has it: `prompt`, and whatever else is there."""

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


def read_rows(source: str | None, texts: Sequence[str]) -> list[Row]:
    """Rows with a column `prompt`.

    Args:
        source: a file; "-" for standard input; None: only `texts`.
        texts: prompts of their own, before those of the file.

    Raises:
        DatasetError: a file that cannot be read, a line that is no row, or no prompt at all.
    """
    rows: list[Row] = [{"prompt": text} for text in texts]
    if source is not None:
        rows += _of_lines(*_lines(source))
    if not rows:
        raise DatasetError(f"{_name(source)}: there is no prompt in it. Give at least one.")
    return rows


def as_chats(rows: Iterable[Mapping[str, Any]], system: str | None) -> list[Row]:
    """The same rows with every text as what a user says, behind the system's message where there is one."""
    before = [] if system is None else [{"role": "system", "content": system}]
    chats = []
    for row in rows:
        prompt = row["prompt"]
        own = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        chats.append({**row, "prompt": [*before, *own]})
    return chats


def _name(source: str | None) -> str:
    return "standard input" if source in (None, "-") else str(source)


def _lines(source: str) -> tuple[str, list[str], bool | None]:
    """Name, lines, and whether they are JSON; None: the first line says so."""
    if source == "-":
        return _name(source), sys.stdin.read().splitlines(), None
    path = Path(source)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{source} cannot be read: {error}") from error
    return source, lines, path.suffix in JSON_SUFFIXES


def _of_lines(name: str, lines: Sequence[str], is_json: bool | None) -> Iterator[Row]:
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if is_json is None:
        is_json = bool(filled) and filled[0][1].lstrip().startswith("{")
    for number, line in filled:
        yield _row(name, number, line) if is_json else {"prompt": line}


def _row(name: str, number: int, line: str) -> Row:
    expected = (
        'It must be a JSON object with "prompt": text, or a list of messages {"role": ..., "content": ...}.'
    )
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DatasetError(f"{name}, line {number} is no JSON ({error}). {expected}") from error
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str | list):
        raise DatasetError(f"{name}, line {number} is {line[:80]!r}. {expected}")
    return row
