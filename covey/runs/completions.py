"""Every completion as a line of JSON: prompt, completion, one column per reward, total, advantage, step, group."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from covey.groups import ScoredGroup


class CompletionLog:
    """Appends scored groups to a file.

    Args:
        path: the file; made where it is missing.
        resumed_at: optimizer steps that are done; lines of later ones, left by a run that was stopped, are dropped.
    """

    def __init__(self, path: Path, resumed_at: int = 0) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() and resumed_at else []
        kept = [line for line in lines if _step(line) <= resumed_at]
        path.write_text("".join(f"{line}\n" for line in kept))

    def write(self, step: int, scored: Sequence[ScoredGroup]) -> None:
        with self.path.open("a") as file:
            for line in completion_rows(step, scored):
                file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


def completion_rows(step: int, scored: Sequence[ScoredGroup]) -> Iterator[dict[str, Any]]:
    """One dictionary per completion; None where a reward does not apply."""
    for number, s in enumerate(scored):
        for i, completion in enumerate(s.group.completions):
            yield {
                "step": step,
                "group": number,
                "prompt": s.group.prompt.content,
                "completion": completion.text,
                **{name: scores[i].value for name, scores in s.scores.items()},
                "reward": s.totals[i],
                "advantage": s.advantages[i],
                "finish": completion.finish,
                "tokens": len(completion.ids),
                **{name: column[i] for name, column in s.extras.items()},
            }


def _step(line: str) -> int:
    """The step of a line; a line cut short by a crash belongs to no step."""
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError):
        return 2**62
