"""Scored groups as lines of a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from covey.runs.record.episodes import episode_lists
from covey.runs.record.json_text import PLACE, Json, json_text
from covey.text.secrets import blanked, without_secrets
from covey.types import Completion, Prompt, ScoredGroup
from covey.vision.marks import mark, marked, pictures_in

MAX_ERROR_CHARS = 8_000
"""Of an error, the end is kept: the last lines of a traceback say most."""

MAX_COLUMN_CHARS = 10_000
"""Of a value in a column of the dataset, as JSON: what is longer is cut, or the record grows with what rows carry along."""

TaskOf = Callable[[Prompt], str | None]


def group_line(
    step: int,
    number: int,
    scored: ScoredGroup,
    task: str | None,
    with_texts: bool,
    weights: Mapping[str, float] | None = None,
) -> Json:
    """Return one group as one line: what its completions share, then one list per field of a completion.

    Numbers are always kept; prompt, pictures, completions, messages, columns and extras only with `with_texts`.

    Args:
        weights: by reward, as the head of the record names them; other ones of the group are in its line.
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
        **episode_lists(scored, with_texts),
    }
    errors = {name: [_shorten(s.error) for s in column] for name, column in scored.scores.items()}
    named = weights or {}
    varied = {n: [w] * len(completions) for n, w in scored.weights.items() if n in named and w != named[n]}
    if varied:
        line["weight"] = varied
    line["error"] = {name: column for name, column in errors.items() if any(column)}
    if with_texts:
        content, columns = marked(prompt)
        line["prompt"] = content if isinstance(content, str) else json_text(content)
        line["columns"], line["cut_columns"] = bounded_columns(columns)
        if pictures := pictures_in(prompt):
            paths = [{"path": p.source} if isinstance(p.source, str) else {} for p in pictures]
            line["pictures"] = json_text(
                [{**mark(p), **path} for p, path in zip(pictures, paths, strict=True)]
            )
        line["completion"] = [c.text for c in completions]
        line["extra"] = {
            name: [json_text(blanked(v)) for v in column] for name, column in scored.extras.items()
        }
    return line


def bounded_columns(columns: Mapping[str, object]) -> tuple[str, str | None]:
    """Return the columns of a row as JSON, with long values cut to their beginning; and, as JSON, how long those were.

    Returns:
        The second is None where nothing was cut.
    """
    kept: dict[str, object] = {}
    cut: dict[str, int] = {}
    for name, value in columns.items():
        text = value if isinstance(value, str) else json_text(value)
        kept[name] = value
        if len(text) > MAX_COLUMN_CHARS:
            cut[name] = len(text)
            kept[name] = f"{text[:MAX_COLUMN_CHARS]} [{len(text) - MAX_COLUMN_CHARS} characters left out]"
    return json_text(kept), json_text(cut) if cut else None


def mean_logprob(completion: Completion) -> float | None:
    """Return the mean log-probability of the tokens that the policy wrote, in nats; None where it wrote none."""
    kept: Sequence[float] = completion.logprobs
    if completion.written is not None:
        kept = [p for p, written in zip(kept, completion.written, strict=False) if written]
    return sum(kept) / len(kept) if kept else None


def _shorten(error: str | None) -> str | None:
    error = None if error is None else PLACE.sub("", without_secrets(error))
    if error is None or len(error) <= MAX_ERROR_CHARS:
        return error
    return f"[{len(error) - MAX_ERROR_CHARS} characters left out]\n{error[-MAX_ERROR_CHARS:]}"
