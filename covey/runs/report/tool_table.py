"""Costs and failures of tools over all recorded episodes of a source, and the slowest calls."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from covey.runs.record.episodes import CallEntry, read_turn_entries
from covey.runs.record.json_text import Json

if TYPE_CHECKING:
    import pyarrow as pa

SLOWEST = 20
"""Calls that are told one by one."""
MADE_UP = {"unknown": "no such tool", "malformed": "cannot be read"}
"""Calls of no tool, by status: the policy may write any number of names, so that these are counted together."""
_KEYS = ("step", "group", "index")


@dataclass
class ToolUse:
    """The calls of one tool."""

    calls: int = 0
    """Those that were answered."""
    not_run: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By status."""
    seconds: float = 0.0
    longest: float = 0.0

    def add(self, call: CallEntry) -> None:
        """Count a call in."""
        status, seconds = call["status"], call["seconds"]
        if status == "not_run":
            self.not_run += 1
            return
        self.calls += 1
        self.failures.update([status] if status != "ok" else [])
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


class ToolTable:
    """Grows with the rows of a source."""

    def __init__(self) -> None:
        self.episodes = self.silent = 0
        """Completions with turns; those of them without a call."""
        self._uses: dict[tuple[str, bool], ToolUse] = {}
        self._slowest: list[tuple[float, int, Json]] = []
        self._order = count(0, -1)  # of equally slow calls the earliest stay

    def add(self, rows: pa.Table) -> None:
        """Take in recorded completions."""
        if "turns" not in rows.column_names:
            return
        for row in rows.select([*_KEYS, "turns"]).to_pylist():
            turns = read_turn_entries(row)
            if turns is None:
                continue
            calls = [call for turn in turns for call in turn["calls"]]
            self.episodes += 1
            self.silent += all(call["status"] == "not_run" for call in calls)
            for call in calls:
                self._add(call, {key: row[key] for key in _KEYS})

    def _add(self, call: CallEntry, place: Json) -> None:
        is_made_up = call["status"] in MADE_UP
        name = MADE_UP[call["status"]] if is_made_up else call.get("name", "")
        self._uses.setdefault((name, is_made_up), ToolUse()).add(call)
        if call["seconds"] > 0:
            told = {"name": name, "status": call["status"], "arguments": call.get("arguments", "")}
            heapq.heappush(self._slowest, (call["seconds"], next(self._order), place | told))
            if len(self._slowest) > SLOWEST:
                heapq.heappop(self._slowest)

    def data(self) -> Json | None:
        """Return the table as JSON, the most called tools first and the slowest calls first; None without episodes."""
        if not self.episodes:
            return None
        uses = sorted(self._uses.items(), key=lambda use: (use[0][1], -use[1].calls, use[0][0]))
        return {
            "episodes": self.episodes,
            "silent": self.silent,
            "tools": [
                {
                    "name": name, "madeUp": is_made_up, "calls": use.calls, "notRun": use.not_run,
                    "failures": dict(use.failures), "seconds": use.seconds, "longest": use.longest,
                }
                for (name, is_made_up), use in uses
            ],
            "slowest": [{**told, "seconds": s} for s, _, told in sorted(self._slowest, key=lambda c: c[:2], reverse=True)],
        }  # fmt: skip
