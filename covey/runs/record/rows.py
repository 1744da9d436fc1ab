"""Scored groups as lines of a record, and lines as columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from covey.runs.record.jsonl import Json, encode, finite
from covey.runs.record.schema import COMPLETION_LEVEL, GROUP_LEVEL
from covey.text.foreign import without_secrets
from covey.types import Completion, Prompt, ScoredGroup

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ERROR_CHARS = 8_000
"""Of an error, the end is kept: the last lines of a traceback say most."""

MAX_COLUMN_CHARS = 10_000
"""Of a value in a column of the dataset, as JSON: what is longer is cut, or the record grows with what rows carry along."""

TaskOf = Callable[[Prompt], str | None]


def group_line(step: int, number: int, scored: ScoredGroup, task: str | None, with_texts: bool) -> Json:
    """Return one group as one line: what its completions share, then one list per field of a completion.

    Numbers are always kept; prompt, completions, columns and extras only with `with_texts`.
    """
    prompt, completions = scored.group.prompt, scored.group.completions
    line: Json = {
        "step": step,
        "group": number,
        "task": task,
        "row": prompt.row,
        "chat": prompt.is_chat,
        "prompt_tokens": len(prompt.ids),
        "cut_tokens": prompt.num_cut_tokens,
        "tokens": [len(c.ids) for c in completions],
        "finish": [c.finish for c in completions],
        "logprob": [mean_logprob(c) for c in completions],
        "total": list(scored.totals),
        "advantage": list(scored.advantages),
        "score": {name: [s.value for s in column] for name, column in scored.scores.items()},
        "status": {name: [s.status for s in column] for name, column in scored.scores.items()},
    }
    errors = {name: [_shorten(s.error) for s in column] for name, column in scored.scores.items()}
    line["error"] = {name: column for name, column in errors.items() if any(column)}
    if with_texts:
        line["prompt"] = prompt.content if isinstance(prompt.content, str) else _json(prompt.content)
        line["columns"], line["cut_columns"] = bounded_columns(prompt.columns)
        line["completion"] = [c.text for c in completions]
        line["extra"] = {name: [_json(v) for v in column] for name, column in scored.extras.items()}
    return line


def bounded_columns(columns: Mapping[str, object]) -> tuple[str, str | None]:
    """Return the columns of a row as JSON, with long values cut to their beginning; and, as JSON, how long those were.

    Returns:
        The second is None where nothing was cut.
    """
    kept: dict[str, object] = {}
    cut: dict[str, int] = {}
    for name, value in columns.items():
        text = value if isinstance(value, str) else _json(value)
        kept[name] = value
        if len(text) > MAX_COLUMN_CHARS:
            cut[name] = len(text)
            kept[name] = f"{text[:MAX_COLUMN_CHARS]} [{len(text) - MAX_COLUMN_CHARS} characters left out]"
    return _json(kept), _json(cut) if cut else None


def mean_logprob(completion: Completion) -> float | None:
    """Return the mean log-probability of the tokens that the policy wrote, in nats; None where it wrote none."""
    kept: Sequence[float] = completion.logprobs
    if completion.written is not None:
        kept = [p for p, written in zip(kept, completion.written, strict=False) if written]
    return sum(kept) / len(kept) if kept else None


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
    for name in GROUP_LEVEL:
        repeated = [line.get(name) for line, n in zip(lines, counts, strict=True) for _ in range(n)]
        columns[name] = _array(name, repeated)
    for name in COMPLETION_LEVEL:
        flat = [v for line, n in zip(lines, counts, strict=True) for v in line.get(name) or [None] * n]
        columns[name] = _array(name, flat)
    for family in ("score", "status", "error", "extra"):
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


def _array(name: str, values: list[object]) -> pa.Array:
    """Return a column in the type of its name; lone surrogates, which UTF-8 cannot hold, as their escapes."""
    import pyarrow as pa

    if name in ("step", "group", "prompt_tokens", "cut_tokens", "tokens"):
        return pa.array(values, pa.int32())
    if name in ("logprob", "total", "advantage", "score"):
        return pa.array(values, pa.float64())
    if name in ("row", "chat"):
        return pa.array(values, pa.int64() if name == "row" else pa.bool_())
    texts = [
        v.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(v, str) and not v.isascii() else v
        for v in values
    ]
    return pa.array(texts, pa.string())


def _json(value: object) -> str:
    try:
        return encode(value).decode("ascii").rstrip("\n")
    except (TypeError, ValueError):  # keys that are no strings, references in circles
        return json.dumps(finite(str(value)))


def _shorten(error: str | None) -> str | None:
    error = None if error is None else without_secrets(error)
    if error is None or len(error) <= MAX_ERROR_CHARS:
        return error
    return f"[{len(error) - MAX_ERROR_CHARS} characters left out]\n{error[-MAX_ERROR_CHARS:]}"
