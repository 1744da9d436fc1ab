"""Prompts of a command: from a file, from standard input, or from the command line itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from covey.errors import DatasetError

Row = dict[str, object]
"""A row as a dataset has it: `prompt`, and whatever else is there."""

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")

EXPECTED = (
    'It must be a JSON object with "prompt": text, or a list of messages {"role": ..., "content": ...}.'
)


def read_rows(source: str | None, texts: Sequence[str]) -> list[Row]:
    """Return rows with a column `prompt`.

    Args:
        source: a file of JSON lines or of text; "-" for standard input, whose first line says which of the two it is;
            None: only `texts`.
        texts: prompts of their own, before those of the file.

    Raises:
        DatasetError: a file that cannot be read, a line that is no row, or no prompt at all.
    """
    name = "standard input" if source in (None, "-") else str(source)
    rows: list[Row] = [{"prompt": text} for text in texts]
    if source is not None:
        try:
            text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(f"{source} cannot be read: {error}") from error
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        is_json = Path(source).suffix in JSON_SUFFIXES
        if source == "-":
            is_json = bool(lines) and lines[0][1].lstrip().startswith("{")
        rows += [parse_row(name, number, line) if is_json else {"prompt": line} for number, line in lines]
    if not rows:
        raise DatasetError(f"{name}: there is no prompt in it. Give at least one.")
    return rows


def parse_row(name: str, number: int, line: str) -> Row:
    """Return the row of a line of JSON.

    Raises:
        DatasetError: no JSON, or no row.
    """
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DatasetError(f"{name}, line {number} is no JSON ({error}). {EXPECTED}") from error
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str | list):
        raise DatasetError(f"{name}, line {number} is {line[:80]!r}. {EXPECTED}")
    return row


def as_chats(rows: Iterable[Row], system: str | None) -> list[Row]:
    """Return the rows with every text as a message of the user, behind the system's message where there is one."""
    before = [] if system is None else [{"role": "system", "content": system}]
    chats: list[Row] = []
    for row in rows:
        prompt = row["prompt"]
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        chats.append({**row, "prompt": [*before, *messages]})
    return chats


def folder_of(source: str | None) -> Path | None:
    """Return the folder of a file of prompts, below which its pictures lie; None for standard input, and without one."""
    return None if source in (None, "-") else Path(str(source)).resolve().parent


def shown_with(rows: Sequence[Row], paths: Sequence[str], count: int) -> list[Row]:
    """Return rows of which the first `count` are chats that show these pictures.

    Args:
        paths: of pictures, wherever they lie: it is the user who names them.

    Raises:
        DatasetError: a file that cannot be read, or an address.
    """
    images: list[bytes] = []
    for path in paths:
        if "://" in path:
            raise DatasetError(
                f"--image {path} is an address, and nothing is fetched. Download it, and give the file."
            )
        try:
            images.append(Path(path).read_bytes())
        except OSError as error:
            raise DatasetError(f"--image {path} cannot be read: {error.strerror}.") from error
    seen = [{**row, "images": images} for row in as_chats(rows[:count], None)]
    return [*seen, *rows[count:]]
