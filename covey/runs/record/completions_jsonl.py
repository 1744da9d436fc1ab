"""Every completion as a line of JSON: prompt, completion, one column per reward, total, advantage, step, group; with tools also
messages and turns.

Where a reward, or a column that one added, has the name of a column that is there already, its own is `rewards/<name>`, or
`extra/<name>`.

A file for people and scripts, written with `log_completions`. The record, which report and reader read, is `writer.py`'s.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from covey.errors import warn
from covey.runs.record.episodes import turn_entries
from covey.runs.record.json_text import finite, plain
from covey.types import ScoredGroup
from covey.vision.marks import marked


class CompletionLog:
    """A file to which scored groups are appended.

    A killed process leaves whole lines, and at most one that is torn, at the end. Where the file cannot be written (a full
    disk), lines are missing, one warning says so, and the run goes on.

    Args:
        path: the file; made where it is missing.
        resumed_at: optimizer steps that are done; lines of later ones, left by a run that was stopped, are dropped.
    """

    def __init__(self, path: Path, resumed_at: int = 0) -> None:
        self.path = path
        self._has_warned = False
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() and resumed_at else []
        beside = path.with_suffix(".tmp")
        with open(beside, "wb") as file:
            file.writelines(line for line in lines if _step(line) <= resumed_at)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)

    def write(self, step: int, scored: Sequence[ScoredGroup]) -> None:
        """Append the completions of a step, all of them or none."""
        lines = [
            json.dumps(finite(line), ensure_ascii=False, default=plain) + "\n"
            for line in completion_rows(step, scored)
        ]
        size = self.path.stat().st_size
        try:
            with open(self.path, "ab", buffering=0) as file:
                data = "".join(lines).encode(errors="surrogatepass")
                while data:  # a disk that fills up takes a part first and fails the next time
                    data = data[file.write(data) :]
        except OSError as error:
            os.truncate(self.path, size)
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"{self.path} cannot be written: {error}. Training goes on; what cannot be written is missing there. "
                    "Free space on the disk."
                )

    def sync(self) -> None:
        """Return when the lines are on the disk."""
        with open(self.path, "r+b") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())


def completion_rows(step: int, scored: Sequence[ScoredGroup]) -> Iterator[dict[str, object]]:
    """Yield one dictionary per completion, with the same columns for each; None where a reward does not apply.

    Where any of them had tools, all have `written_tokens`, `turns` (`TurnEntry`) and `messages`.
    """
    extras = list(dict.fromkeys(name for s in scored for name in s.extras))
    has_tools = any(c.turns is not None for s in scored for c in s.group.completions)
    for number, s in enumerate(scored):
        shown, _ = marked(s.group.prompt)
        for i, completion in enumerate(s.group.completions):
            row: dict[str, object] = {"step": step, "group": number}
            row["prompt"] = shown if completion.own_prompt is None else completion.own_prompt
            row["completion"] = completion.text
            later: dict[str, object] = {"reward": s.totals[i], "advantage": s.advantages[i]}
            later |= {"finish": completion.finish, "tokens": len(completion.ids)}
            if has_tools:
                later |= {"written_tokens": completion.num_written, "turns": turn_entries(s, i)}
                later["messages"] = None if completion.messages is None else list(completion.messages)
            taken = {*row, *later}
            for name, scores in s.scores.items():
                row[f"rewards/{name}" if name in taken else name] = scores[i].value
            row |= later
            taken = set(row)
            for name in extras:
                column = s.extras.get(name)
                row[f"extra/{name}" if name in taken else name] = None if column is None else column[i]
            yield row


def _step(line: bytes) -> int:
    """Return the step of a line; a line cut short by a crash belongs to no step."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**62
