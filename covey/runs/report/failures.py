"""Failures of rewards, gathered by what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable

from covey.runs.record.json_text import Json
from covey.runs.record.schema import Event

_DETAIL = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?|'[^']*'|\"[^\"]*\"")

MAX_KINDS = 200


def failures(events: Iterable[Event]) -> list[Json]:
    """Return one entry per reward and kind of error, the most frequent first.

    Errors are of one kind when their last lines agree but for numbers, addresses and quoted names.
    """
    kinds: dict[tuple[str, str], Json] = {}
    for event in events:
        if event["kind"] != "reward_failure" or event["void"]:
            continue
        details, step = event["details"], event["step"]
        if not isinstance(details.get("reward"), str) or not isinstance(details.get("count"), int):
            continue  # not ours
        error = str(details.get("error") or "")
        last = (error.strip().splitlines() or [""])[-1]
        entry = kinds.setdefault(
            (details["reward"], _DETAIL.sub("…", last)),
            {
                "reward": details["reward"], "title": last, "error": error, "count": 0, "steps": [],
                "group": details.get("group"), "index": details.get("index"),
            },
        )  # fmt: skip
        entry["count"] += details["count"]
        entry["steps"].append([step, details["count"]])
    return sorted(kinds.values(), key=lambda entry: -entry["count"])[:MAX_KINDS]
