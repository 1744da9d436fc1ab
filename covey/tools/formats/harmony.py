"""gpt-oss: messages with a channel; one to `functions.f` is a call, with the recipient before or behind the channel."""

from __future__ import annotations

import re

from covey.tools.formats.parsed import Format, Schemas, WrittenCall, json_call, read_json

START, MESSAGE = "<|start|>assistant", "<|message|>"
ENDS = re.compile(r"<\|end\|>|<\|call\|>|<\|return\|>")
RECIPIENT = re.compile(r"\bto=([^\s<]+)")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def messages_in(text: str) -> list[tuple[str, str]]:
    """Return the messages of a turn, each a header and its words."""
    pieces = [piece.partition(MESSAGE) for whole in ENDS.split(text) for piece in whole.split(START)]
    return [(header, body) for header, mark, body in pieces if mark or body or header.strip()]


def thoughts(text: str, prefix: str) -> tuple[str, str | None]:
    """Cut the messages of the channel `analysis`."""
    kept, found = [], []
    for header, body in messages_in(text):
        channel = CHANNEL.search(header)
        if channel is not None and channel[1] == "analysis" and RECIPIENT.search(header) is None:
            found.append(body.strip())
        else:
            kept.append(
                f"{header}{MESSAGE}{body}" if CHANNEL.search(header) or RECIPIENT.search(header) else header
            )
    return "<|end|>".join(kept), "\n".join(found) if found else None


def calls_in(text: str, schemas: Schemas) -> tuple[str, list[WrittenCall]]:
    """Return what is said beside the calls, and the calls."""
    content, calls = [], []
    for header, body in messages_in(text):
        recipient = RECIPIENT.search(header)
        if recipient is None:
            content.append(body if CHANNEL.search(header) else header)
            continue
        name = recipient[1].removeprefix("functions.")
        value, end, fault = read_json(body) if body.strip() else ({}, len(body), None)
        if fault is None and body[end:].strip():
            fault = "something stands behind the JSON"
        made = {"name": name, "arguments": value}
        calls.append(json_call(body, made) if fault is None else WrittenCall(body, name, fault=fault))
    return "\n".join(content), calls


def spoken(text: str) -> str:
    """Return the words of the messages, without their headers."""
    return calls_in(text, {})[0]


HARMONY = Format("harmony", calls_in, thoughts, spoken)
