"""Recorded completions as groups again, for rewards that are to be run on them once more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from covey.types import Completion, Group, Prompt

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

    Token ids are not recorded: the completions of these groups have none.
    """
    groups: list[Group] = []
    last = None
    for row in rows.to_pylist():
        if row["completion"] is None:
            return None
        completion = Completion((), (), row["completion"], row["finish"])
        if (row["step"], row["group"]) == last:
            groups[-1] = Group(groups[-1].prompt, (*groups[-1].completions, completion))
            continue
        last = row["step"], row["group"]
        columns = json.loads(row["columns"]) if row["columns"] else {}
        content = json.loads(row["prompt"]) if row["chat"] else row["prompt"]
        prompt = Prompt(content, (), columns, row["row"])
        groups.append(Group(prompt, (completion,)))
    return groups
