"""An episode with tools as the record has it: its messages, and what became of each turn.

Where every completion of a group is plain, nothing of this is written: a run without tools leaves the bytes that it always
left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from covey.runs.record.json_text import Json, json_text
from covey.runs.record.schema import EPISODE_LEVEL
from covey.types import Message, PromptContent, ScoredGroup, ToolCall, Turn

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ARGUMENTS_CHARS = 2_000
"""Of the arguments of a call, as JSON. They are whole in the messages."""


class CallEntry(TypedDict, total=False):
    """A call of a recorded turn."""

    name: str
    """Missing where texts are not recorded and the name is none of a tool: the policy made it up."""
    arguments: str
    """As JSON, its beginning where it is long; missing where texts are not recorded."""
    status: str
    seconds: float


class TurnEntry(TypedDict, total=False):
    """A turn as the record, the terminal and the page have it; what there is nothing of is missing."""

    sampled: int
    """Tokens that the policy wrote."""
    injected: int
    """Tokens that answered it."""
    logprob: float | None
    """Mean log-probability of its tokens when they were drawn, in nats."""
    seconds: float
    """Time that its calls took."""
    calls: list[CallEntry]
    reward: float
    """What the environment said of it."""
    scores: dict[str, float]
    """By reward, where one judges turn by turn."""
    advantage: float
    """Its own, with turn credit."""


def turn_entries(scored: ScoredGroup, index: int, with_texts: bool = True) -> list[TurnEntry]:
    """Return the turns of a completion, in order; none where it is plain.

    Args:
        with_texts: whether to say what the policy wrote: arguments, and names of tools that there are not.
    """
    turns = scored.group.completions[index].turns or ()
    return [_turn_entry(scored, index, number, with_texts) for number in range(len(turns))]


def _turn_entry(scored: ScoredGroup, index: int, number: int, with_texts: bool) -> TurnEntry:
    completion = scored.group.completions[index]
    turn = (completion.turns or ())[number]
    logprobs = completion.logprobs[turn.start : turn.stop]
    entry: TurnEntry = {
        "sampled": turn.stop - turn.start,
        "injected": turn.end - turn.stop,
        "logprob": sum(logprobs) / len(logprobs) if logprobs else None,
        "seconds": turn.seconds,
        "calls": [_call_entry(call, with_texts) for call in turn.calls],
    }
    if turn.reward is not None:
        entry["reward"] = turn.reward
    judged = {name: column[index].turns for name, column in scored.scores.items()}
    if by_turn := {name: values[number] for name, values in judged.items() if values is not None}:
        entry["scores"] = by_turn
    if scored.turn_advantages is not None:
        entry["advantage"] = scored.turn_advantages[index][number]
    return entry


def _call_entry(call: ToolCall, with_texts: bool) -> CallEntry:
    entry: CallEntry = {"status": call.status, "seconds": call.seconds}
    if with_texts or call.status not in ("unknown", "malformed"):
        entry["name"] = call.name
    if with_texts:
        text = json_text(call.arguments)
        left = len(text) - MAX_ARGUMENTS_CHARS
        entry["arguments"] = (
            f"{text[:MAX_ARGUMENTS_CHARS]} [{left} characters left out]" if left > 0 else text
        )
    return entry


def episode_lists(scored: ScoredGroup, with_texts: bool) -> Json:
    """Return what a group's line says of episodes: one list by field, with None for a plain completion among others.

    Fields without any value are left out, so that there is none for a group of plain completions.
    """
    each = [_episode_fields(scored, i, with_texts) for i in range(len(scored.group.completions))]
    names = [name for name in EPISODE_LEVEL if any(name in fields for fields in each)]
    return {name: [fields.get(name) for fields in each] for name in names}


def _episode_fields(scored: ScoredGroup, index: int, with_texts: bool) -> Json:
    completion = scored.group.completions[index]
    fields: Json = {}
    turns, messages, prompt = completion.turns, completion.messages, completion.own_prompt
    if turns is not None or completion.written is not None:
        fields["written_tokens"] = completion.num_written
    if turns is not None:
        calls = [call for turn in turns for call in turn.calls]
        fields["num_turns"] = len(turns)
        fields["calls"] = sum(call.status != "not_run" for call in calls)
        fields["call_failures"] = sum(call.has_failed for call in calls)
        fields["turns"] = json_text(turn_entries(scored, index, with_texts))
    if with_texts and messages is not None:
        fields["messages"] = json_text(messages)
    if with_texts and prompt is not None:
        fields["own_prompt"] = prompt if isinstance(prompt, str) else json_text(prompt)
    return fields


# --- read ---------------------------------------------------------------------------------------------------------------


def written_lengths(rows: pa.Table) -> NDArray[np.int64]:
    """Return the tokens that the policy wrote of each recorded completion. Shape (completions,)."""
    lengths = np.asarray(rows["tokens"].to_numpy(), dtype=np.int64)
    if "written_tokens" not in rows.column_names:
        return lengths
    written = rows["written_tokens"]
    is_known = np.asarray(written.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
    return np.where(is_known, written.fill_null(0).to_numpy(), lengths).astype(np.int64)


def read_messages(row: Mapping[str, object]) -> tuple[Message, ...] | None:
    """Return the messages of a recorded completion; None where it is plain, or its texts are not recorded."""
    text = row.get("messages")
    found = json.loads(text) if isinstance(text, str) else None
    return tuple(found) if isinstance(found, list) else None


def read_own_prompt(row: Mapping[str, object]) -> PromptContent | None:
    """Return the prompt's content for this completion alone; None where it is that of its group."""
    text = row.get("own_prompt")
    if not isinstance(text, str):
        return None
    content: PromptContent = json.loads(text) if row["chat"] else text
    return content


def read_turn_entries(row: Mapping[str, object]) -> list[TurnEntry] | None:
    """Return the turns of a recorded completion; None where it is plain."""
    text = row.get("turns")
    found = json.loads(text) if isinstance(text, str) else None
    return found if isinstance(found, list) else None


def read_turns(row: Mapping[str, object], tokens: int) -> tuple[Turn, ...] | None:
    """Return the turns of a recorded completion at their places, without their calls; None where it is plain.

    Args:
        tokens: ids of the completion; what is in no turn is its opening.
    """
    entries = read_turn_entries(row)
    if entries is None:
        return None
    start = tokens - sum(entry["sampled"] + entry["injected"] for entry in entries)
    turns = []
    for entry in entries:
        stop = start + entry["sampled"]
        end = stop + entry["injected"]
        turns.append(Turn(start, stop, end, (), entry.get("reward"), entry["seconds"]))
        start = end
    return tuple(turns)
