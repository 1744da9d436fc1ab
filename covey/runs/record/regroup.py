"""Recorded completions as groups again, for rewards that are to be run on them once more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.runs.record.episodes import read_messages, read_own_prompt, read_turns
from covey.runs.record.picture_files import picture_path
from covey.types import Completion, Group, Picture, Prompt, is_picture
from covey.vision.pictures import IN_RECORD, NO_LIMITS, PictureError, picture_of

if TYPE_CHECKING:
    import pyarrow as pa


def cut_columns(rows: pa.Table) -> dict[str, int]:
    """Return the columns of the dataset whose values are not whole in the record, with the greatest length in characters."""
    lengths: dict[str, int] = {}
    for text in set(rows["cut_columns"].to_pylist()) if "cut_columns" in rows.column_names else ():
        for name, length in json.loads(text or "{}").items():
            lengths[name] = max(length, lengths.get(name, 0))
    return lengths


def regroup(rows: pa.Table) -> list[Group] | None:
    """Return the groups of consecutive rows, in order; None where the texts of any of them are not recorded.

    Token ids are not recorded: the completions of these groups have none. Their turns have places, and no calls: what was
    called is in the messages. Where prompts showed pictures stand marks; `shown_again` puts the pictures there.
    """
    groups: list[Group] = []
    last = None
    for row in rows.to_pylist():
        if row["completion"] is None:
            return None
        completion = Completion(
            (), (), row["completion"], row["finish"],
            turns=read_turns(row, row["tokens"]), messages=read_messages(row), own_prompt=read_own_prompt(row),
        )  # fmt: skip
        if (row["step"], row["group"]) == last:
            groups[-1] = Group(groups[-1].prompt, (*groups[-1].completions, completion))
            continue
        last = row["step"], row["group"]
        columns = json.loads(row["columns"]) if row["columns"] else {}
        content = json.loads(row["prompt"]) if row["chat"] else row["prompt"]
        entries = json.loads(row.get("pictures") or "[]")
        pictures = tuple(Picture(e.get("path"), e["digest"], tuple(e["size"])) for e in entries)
        prompt = Prompt(content, (), columns, row["row"], pictures=pictures)
        groups.append(Group(prompt, (completion,)))
    return groups


def shown_again(group: Group, record: Path) -> Group:
    """Return a recorded group with references of its pictures in prompt and columns in place of the marks.

    Raises:
        PictureError: a picture is not there any more, or another one.
    """
    prompt = group.prompt
    found = {picture.digest: found_again(picture, record) for picture in prompt.pictures}

    def unmarked(value: object, in_message: bool) -> object:
        if isinstance(value, dict) and is_picture(value) and value.get("digest") in found:
            picture = found[value["digest"]]
            return {"type": "image", "image": picture} if in_message else picture
        if isinstance(value, dict):
            return {name: unmarked(inner, in_message) for name, inner in value.items()}
        return [unmarked(inner, in_message) for inner in value] if isinstance(value, list) else value

    given: Any = {"content": unmarked(prompt.content, True), "columns": unmarked(prompt.columns, False)}
    return replace(group, prompt=replace(prompt, pictures=tuple(found.values()), **given))


def found_again(picture: Picture, record: Path) -> Picture:
    """Return a reference into the record where it has a picture whole, else to where it came from; raise a PictureError for neither."""
    whole = picture_path(record, picture.digest, is_full=True)
    if whole.exists():
        return picture_of(str(whole.absolute()), limits=IN_RECORD)
    if picture.source is None:
        raise PictureError(
            "The record has its pictures small at most, and they came from no file. Record them whole (record_pictures='full')."
        )
    again = picture_of(picture.source, limits=NO_LIMITS)
    if again.digest != picture.digest:
        raise PictureError(f"{picture.source} has changed since. Put the former picture back.")
    return again
