"""The files of a run record and their fields.

    record/
    ├── run.json                      what the run is: settings, environment, git, dataset, plan; written once per start
    ├── steps.jsonl                   one line per step: metrics, and seconds per phase
    ├── group_statistics.jsonl        one line per sampled batch: means with standard errors, statuses, duplicates
    ├── events.jsonl                  what happened: starts, checkpoints, hints, failures of rewards, the end
    ├── evaluations.jsonl             one line per evaluation
    ├── groups/NNNNNN.parquet         one row per completion; the newest segment is NNNNNN.jsonl, one line per group
    ├── evaluation_rows/SSSSSS-NAME.parquet   one row per completion of an evaluation, same columns
    └── pictures/DIGEST.webp          each picture that prompts show once, small; with record_pictures="full" DIGEST.full.webp too

JSON lines hold what is read while the run goes on: they are appended, one write per line, and a reader ignores a last
line that has no end. Parquet holds the bulk. A segment of groups is a JSON-lines file until it is full, then becomes
Parquet under the same number; where both exist, the Parquet file is the whole one.

A *step* counts optimizer steps from 1; groups carry the step that they feed first. Times are seconds since the epoch.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any, TypedDict

VERSION = 3
"""Version of this schema; a reader refuses a newer one. 3 has pictures, 2 the columns of episodes; it reads both, and 1."""

FOLDER = "record"
"""Name of the record inside the output directory of a run."""

RUN = "run.json"
STEPS = "steps.jsonl"
STATISTICS = "group_statistics.jsonl"
EVENTS = "events.jsonl"
EVALUATIONS = "evaluations.jsonl"
GROUPS = "groups"
EVALUATION_ROWS = "evaluation_rows"
PICTURES = "pictures"

MAX_NAME = 150
"""Characters of an evaluation's name in that of its file."""


class StepLine(TypedDict):
    """A line of steps.jsonl; fields as `STEP_FIELDS` explains them."""

    step: int
    time: float
    metrics: dict[str, float]
    seconds: dict[str, float]


class StatisticsLine(TypedDict):
    """A line of group_statistics.jsonl."""

    step: int
    numbers: dict[str, float]


class EventLine(TypedDict):
    """A line of events.jsonl; fields as `EVENT_FIELDS` explains them."""

    time: float
    step: int | None
    kind: str
    message: str
    details: dict[str, Any]


class Event(EventLine):
    """An event, and whether a later resume took out its step."""

    void: bool


class EvaluationLine(TypedDict):
    """A line of evaluations.jsonl; fields as `EVALUATION_FIELDS` explains them."""

    step: int
    time: float
    name: str
    metrics: dict[str, float]
    rows: int


RUN_FIELDS = {
    "version": "version of the schema",
    "name": "name of the run",
    "started": "time of the first start",
    "settings": "every setting by name; secrets are blanked",
    "changed": "names of the settings that are not at their default",
    "rewards": "weight by reward name",
    "model": "what is trained: name, parameters, trainable, weights_dtype, weight_scale (median |w|), where known",
    "dataset": "name, rows, columns and fingerprint of the training data",
    "plan": "the table of the plan: pairs of label and value",
    "environment": "python, libraries, machine, command line",
    "git": "commit, branch, whether the tree was clean, the difference to the commit (bounded)",
    "record_completions": "share of the groups whose texts are recorded, in [0, 1]",
    "record_pictures": "thumbnail, full or none: which pictures are recorded beside these texts",
    "max_steps": "optimizer steps of the whole run, or null",
    "engine": "what samples: kind and release; of servers their urls and the model that they name; missing until it has sampled",
    "tools": "by name: where it runs (inline, thread, process, loop), the schema that the policy reads, and, of "
    "several, the environments that have it; missing without tools",
}

STEP_FIELDS = {
    "step": "number of the optimizer step, from 1",
    "time": "when the line was written",
    "metrics": "number by metric name",
    "seconds": "wall seconds by phase: sample, score, update, …",
}

EVENT_FIELDS = {
    "time": "when it happened",
    "step": "optimizer step, or null",
    "kind": "see EVENT_KINDS",
    "message": "one sentence for people",
    "details": "whatever the kind adds",
}

EVENT_KINDS = {
    "started": "a process began the run; details: pid, host, boot",
    "resumed": "a process goes on from a checkpoint; what was recorded after that step was taken out",
    "checkpoint": "a checkpoint was written",
    "settings": "settings were changed while the run went on",
    "engine": "servers sampled for the first time; details: engine, as in run.json",
    "warning": "something the user asked for is done differently",
    "reward_failure": "a reward failed on samples; details: reward, count, error, group, index",
    "hint": "a rule found something; details: the hint",
    "record": "lines of the record were lost, for example on a full disk",
    "finished": "the run came to its end",
    "interrupted": "the run was stopped from outside, in order",
    "failed": "the run ended with an error; details: traceback",
}

END_KINDS = ("finished", "interrupted", "failed")

EVALUATION_FIELDS = {
    "step": "optimizer step after which the policy was evaluated; 0: before the first",
    "time": "when the line was written",
    "name": "name of the evaluation set",
    "metrics": "number by metric name, without a prefix",
    "rows": "number of completions in evaluation_rows",
}

COMPLETION_FIELDS = {
    "step": "optimizer step",
    "group": "number of the group within the step",
    "index": "number of the completion within the group",
    "task": "value of the task column, or null",
    "row": "row of the dataset",
    "prompt": "the prompt as text, or as JSON where chat is true; null where texts are not recorded. A picture stands there as "
    "{'type': 'image', 'digest': ..., 'size': [width, height]}, and so it does in columns",
    "chat": "whether the prompt is a list of messages",
    "prompt_tokens": "length of the prompt in tokens",
    "cut_tokens": "tokens that max_prompt_length cut away",
    "columns": "the row's other columns as JSON, long values cut; null where texts are not recorded",
    "cut_columns": "columns whose value was cut, with its length in characters, as JSON; null where none was",
    "pictures": "what the policy was shown, in order (what rewards were, where it is shown nothing), as JSON: digest, size, and path where it came from a file; null where texts "
    "are not recorded, and no column where no prompt shows any",
    "completion": "text of the completion; null where texts are not recorded",
    "tokens": "length of the completion in tokens, those that answered the policy included",
    "finish": "why it ended: stop, stop_string, length; with tools also turns, tool, environment, deadline, failed "
    "(`covey.types.FinishReason`)",
    "logprob": "mean log-probability of its tokens when they were drawn, in nats; null for no tokens",
    "total": "weighted sum of the scores; null where nothing scored it or a reward failed",
    "advantage": "what the group says about it",
    "written_tokens": "tokens that the policy wrote; this and the next six: null for completions without tools, and no "
    "column where all are",
    "num_turns": "turns of the policy",
    "calls": "tool calls that were answered",
    "call_failures": "of these, how many failed",
    "turns": "what became of each turn, as JSON: see `covey.runs.record.episodes.TurnEntry`",
    "messages": "the assistant's and the tools' messages as JSON; null where texts are not recorded",
    "own_prompt": "as prompt, where an environment began this completion differently from its siblings",
    "score/<reward>": "what the reward gave; null where it gave no number",
    "status/<reward>": "value, not_applicable, gated, failed",
    "weight/<reward>": "what its score weighs in the total, where that is another number than run.json names: weights by task or over time, "
    "and multipliers of bounds; null, or no column, where it is that one",
    "error/<reward>": "what went wrong, where it failed",
    "extra/<column>": "what rewards noted beside, as JSON",
}
"""Columns of the Parquet files, one row per completion."""

GROUP_LEVEL = (
    "step",
    "group",
    "task",
    "row",
    "prompt",
    "chat",
    "prompt_tokens",
    "cut_tokens",
    "columns",
    "cut_columns",
)
"""Fields that all completions of a group share."""

PICTURE_LEVEL = ("pictures",)
"""Fields of a group whose prompt shows pictures; a file of other prompts does not have them."""

COMPLETION_LEVEL = ("completion", "tokens", "finish", "logprob", "total", "advantage")
"""Fields that each completion has for itself, beside scores, statuses, errors and extras."""

EPISODE_LEVEL = ("written_tokens", "num_turns", "calls", "call_failures", "turns", "messages", "own_prompt")
"""Fields of a completion with tools; a file of plain completions does not have them."""

_NUMBER = (int, float)
FORMS: dict[str, dict[str, type | tuple[type, ...]]] = {
    STEPS: {"step": int, "time": _NUMBER, "metrics": dict, "seconds": dict},
    STATISTICS: {"step": int, "numbers": dict},
    EVENTS: {"time": _NUMBER, "step": (int, type(None)), "kind": str, "message": str, "details": dict},
    EVALUATIONS: {"step": int, "time": _NUMBER, "name": str, "metrics": dict, "rows": int},
}
"""Types of the fields that every line of a file has. A line of another form is damage, or not ours."""

HEADER_FORM: dict[str, type | tuple[type, ...]] = {
    "version": int, "name": str, "started": _NUMBER, "settings": dict, "changed": list, "rewards": dict, "model": dict, "dataset": dict,
    "plan": list, "environment": dict, "git": dict, "record_completions": _NUMBER, "max_steps": int, "tools": dict, "engine": dict,
    "record_pictures": str,
}  # fmt: skip
"""Types of the fields of run.json; a field of another type is left out."""


def has_form(name: str, line: dict[str, Any]) -> bool:
    """Return whether a line has the form of that name; an unknown one takes any line."""
    form = FORMS.get(name, {})
    numbers = [line.get(field) for field in ("metrics", "numbers", "seconds") if field in form]
    return all(
        isinstance(line.get(f), kinds) and not isinstance(line.get(f), bool) for f, kinds in form.items()
    ) and all(
        value is None or isinstance(value, int | float)
        for part in numbers
        for value in dict(part or {}).values()
    )


def evaluation_file(name: str, step: int) -> str:
    """Return the file name of the rows of an evaluation; letters, digits, dots, dashes and underscores of the name stay.

    A long name is cut, and told by its digest: file systems take 255 bytes.
    """
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else f"%{ord(c):02x}" for c in name)
    if len(safe) > MAX_NAME:
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        safe = f"{safe[:MAX_NAME]}-{digest}"
    return f"{step:06d}-{safe}.parquet"


def is_record(folder: Path) -> bool:
    """Return whether a folder holds a record, also one whose head is gone."""
    return any((folder / name).is_file() for name in (RUN, STEPS, EVENTS))


def record_folder(path: str | Path) -> Path:
    """Return the record at or inside a path: the folder itself, or `record/` in the output directory of a run.

    Raises:
        FileNotFoundError: there is no record; the message says what was looked for.
    """
    path = Path(path)
    for folder in (path, path / FOLDER):
        if is_record(folder):
            return folder
    raise FileNotFoundError(
        f"No run record at {path}: neither {path / RUN} nor {path / FOLDER / RUN} exists. Give the output directory of "
        "a run, or its record folder."
    )
