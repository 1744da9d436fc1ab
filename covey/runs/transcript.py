"""Episodes as people read them: who says what, what is called and what comes back, each bounded and with nothing hidden.

What the policy wrote is told apart from what answered it, in every form: `Part.is_injected`, a bar before the line in plain
text, grey in a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from covey.runs.record.episodes import CallEntry, TurnEntry
from covey.runs.terminal.phrases import duration
from covey.text.foreign import excerpt, fit
from covey.types import Message, message_text

PART = 2_000
"""Characters of a part that are shown; the middle of what is longer is left out."""
PARTS = 60
"""Parts of an episode that are shown; those in the middle of a longer one are left out."""
NAME = 80
"""Characters of a name that are shown: the policy may have made it up."""
SHOWN_SECONDS = 0.005
"""Time of a call from which on it is said."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that is said in an episode."""

    speaker: str
    text: str
    is_injected: bool = False
    """The policy did not write it."""


def transcript(messages: Sequence[Message], turns: Sequence[TurnEntry] = ()) -> list[Part]:
    """Return an episode in parts, fit for people.

    Args:
        messages: of the completion, the prompt's not among them.
        turns: what the record says of each turn; without them, calls are those of the messages, and nothing is said of how
            they went.
    """
    parts = list(_parts(messages, turns))
    left = len(parts) - PARTS
    if left <= 0:
        return parts
    half = PARTS // 2
    return [*parts[:half], Part("", f"… {left} parts left out …"), *parts[-half:]]


def _parts(messages: Sequence[Message], turns: Sequence[TurnEntry]) -> Iterator[Part]:
    num_spoken = sum(m.get("role") == "assistant" for m in messages)
    # Calls between tags: the results, and so all turns, stand in one message.
    is_joined = bool(turns) and num_spoken != len(turns)
    recorded = iter([] if is_joined else turns)
    for message in messages:
        role = excerpt(str(message.get("role", "")), NAME)
        if role != "assistant":
            name = f"{role} {excerpt(str(message.get('name') or ''), NAME)}".strip()
            yield Part(name, fit(message_text(message), PART), is_injected=True)
            continue
        if thought := message.get("reasoning_content") or message.get("thinking"):
            yield Part("thinking", fit(thought, PART))
        if text := message_text(message).strip():
            yield Part(role, fit(text, PART))
        turn = next(recorded, None)
        calls = _named_calls(message) if turn is None else turn.get("calls", [])
        yield from (Part("call", call_text(call)) for call in calls)
    if is_joined:
        yield from (Part("call", call_text(call)) for turn in turns for call in turn.get("calls", []))


def _named_calls(message: Message) -> list[CallEntry]:
    """Return the calls of a message, of which it is not known how they went."""
    given = message.get("tool_calls")
    functions = (
        [c.get("function", c) for c in given if isinstance(c, dict)] if isinstance(given, list) else []
    )
    return [
        {"name": str(f.get("name", "")), "arguments": a if isinstance(a, str) else json.dumps(a, default=str)}
        for f, a in ((f, f.get("arguments", {})) for f in functions if isinstance(f, dict))
    ]


def call_text(call: CallEntry) -> str:
    """Return a call in one line: `search(query="covey")`, with what went wrong and how long it took."""
    name, status = excerpt(call.get("name") or "?", NAME), call.get("status", "ok")
    words = [f"{name}({_argument_list(call.get('arguments', ''))})"]
    if status != "ok":
        words.append("not run" if status == "not_run" else f"failed: {status}")
    if call.get("seconds", 0.0) >= SHOWN_SECONDS:
        words.append(duration(call["seconds"]))
    return ", ".join(words)


def _argument_list(text: str) -> str:
    """Return JSON of arguments as a call in Python has them; as it is where it was cut."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, Mapping):
        return excerpt(text, PART)
    pairs = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
    return excerpt(", ".join(pairs), PART)


def plain_lines(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the lines of a transcript; what the policy did not write has a bar in front."""
    for part in parts:
        first, *more = part.text.split("\n")
        bar = "| " if part.is_injected else ""
        yield bar + (f"{part.speaker}: {first}" if part.speaker else first)
        yield from (f"{bar}    {line}" for line in more)


def episode_text(messages: Sequence[Message], turns: Sequence[TurnEntry] = ()) -> str:
    """Return the transcript of an episode as plain text."""
    return "\n".join(plain_lines(transcript(messages, turns)))
