"""Lines of groups as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from covey.runs.record.json_text import Json
from covey.runs.record.schema import COMPLETION_LEVEL, EPISODE_LEVEL, GROUP_LEVEL, PICTURE_LEVEL

if TYPE_CHECKING:
    import pyarrow as pa


def sound_table(lines: Sequence[Json]) -> pa.Table:
    """Return `table` of those lines that are groups: a step, and lists of one length for what each completion has for itself."""
    try:
        if all(type(line["step"]) is int and type(line["group"]) is int for line in lines):
            return table(lines)
    except Exception:  # the boundary: one line among them makes no row; found out only then
        pass
    sound = []
    for line in lines:
        try:
            if type(line["step"]) is int and type(line["group"]) is int and table([line]).num_rows:
                sound.append(line)
        except Exception:
            continue
    return table(sound)


def table(lines: Sequence[Json]) -> pa.Table:
    """Return lines of groups as one Arrow table, one row per completion; columns as `schema.COMPLETION_FIELDS` names them."""
    import pyarrow as pa

    counts = [len(line["tokens"]) for line in lines]
    columns: dict[str, pa.Array] = {"index": pa.array([i for n in counts for i in range(n)], pa.int32())}
    for name in (*GROUP_LEVEL, *(n for n in PICTURE_LEVEL if any(n in line for line in lines))):
        repeated = [line.get(name) for line, n in zip(lines, counts, strict=True) for _ in range(n)]
        columns[name] = _array(name, repeated)
    for name in (*COMPLETION_LEVEL, *(n for n in EPISODE_LEVEL if any(n in line for line in lines))):
        flat = [v for line, n in zip(lines, counts, strict=True) for v in line.get(name) or [None] * n]
        columns[name] = _array(name, flat)
    for family in ("score", "status", "weight", "error", "extra"):
        for name in dict.fromkeys(name for line in lines for name in line.get(family) or {}):
            flat = [
                v
                for line, n in zip(lines, counts, strict=True)
                for v in (line.get(family) or {}).get(name) or [None] * n
            ]
            column = f"{family}/{name}".encode("utf-8", "backslashreplace").decode()
            columns[column] = _array(family, flat)
    order = ["step", "group", "index", *[n for n in columns if n not in ("step", "group", "index")]]
    return pa.table({name: columns[name] for name in order})


def column_type(name: str) -> pa.DataType:
    """Return the Arrow type of a column, or of the columns of a family (`score`, `status`, `weight`, `error`, `extra`)."""
    import pyarrow as pa

    if name in (
        "step", "group", "index", "prompt_tokens", "cut_tokens", "tokens",
        "written_tokens", "num_turns", "calls", "call_failures",
    ):  # fmt: skip
        return pa.int32()
    if name in ("logprob", "total", "advantage", "score", "weight"):
        return pa.float64()
    return {"row": pa.int64(), "chat": pa.bool_()}.get(name, pa.string())


def _array(name: str, values: list[object]) -> pa.Array:
    """Return a column in the type of its name; lone surrogates, which UTF-8 cannot hold, as their escapes."""
    import pyarrow as pa

    kind = column_type(name)
    if not pa.types.is_string(kind):
        return pa.array(values, kind)
    texts = [
        v.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(v, str) and not v.isascii() else v
        for v in values
    ]
    return pa.array(texts, kind)
