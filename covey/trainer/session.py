"""What a trainer talks to: record, hints and terminal behind one object.

    session = RunSession.open(folder, settings=..., rewards=..., plan=plan.table(), max_steps=300)
    session.groups(step, scored_groups)          # when a round was scored
    session.step(step, metrics, seconds)         # when its metrics are known
    session.evaluation("validation", step, metrics, scored_groups)
    session.sync()                               # before a checkpoint is in place
    session.close("finished")

Any of the three can be left out; what is left out costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.runs.hints import Hint, HintWatch
from covey.runs.record.group_statistics import group_statistics
from covey.runs.record.writer import End, RunWriter
from covey.runs.terminal.display import Display
from covey.types import ScoredGroup


class RunSession:
    """A run that goes on, seen by its record, its hints and its terminal."""

    def __init__(
        self,
        writer: RunWriter | None = None,
        hints: HintWatch | None = None,
        display: Display | None = None,
    ) -> None:
        self.writer = writer
        self.hints = hints
        self.display = display
        self._statistics: dict[str, float] | None = None
        self._groups: Sequence[ScoredGroup] = ()

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        settings: Mapping[str, Any],
        rewards: Mapping[str, float],
        plan: Sequence[tuple[str, str]] = (),
        max_steps: int | None = None,
        display: bool = True,
        **options: Any,
    ) -> RunSession:
        """Open the record, the hints and, on request, the terminal. Options are those of `RunWriter.open`.

        Raises:
            ConfigError: see `RunWriter.open`.
        """
        writer = RunWriter.open(
            folder, settings=settings, rewards=rewards, plan=plan, max_steps=max_steps, **options
        )
        hints = HintWatch(settings, rewards, options.get("model"))
        text = "\n".join(f"{label:<34}{value}" for label, value in plan)
        shown = Display(text, max_steps, name=writer.name, rewards=list(rewards)) if display else None
        return cls(writer, hints, shown)

    def groups(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """A round of sampling was scored: all its groups, once."""
        self._groups = groups
        if self.writer is not None:
            self._statistics = self.writer.groups(step, groups)
        elif self.hints is not None:
            self._statistics = group_statistics(groups, [None] * len(groups), self.hints.history.rewards)
        if self.hints is not None:
            for message in self.hints.sampled(step, groups):
                self.event("warning", message, step)

    def step(
        self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float] | None = None
    ) -> list[Hint]:
        """An optimizer step is done; returns the hints that are new."""
        if self.writer is not None:
            self.writer.step(step, metrics, seconds)
        if self.display is not None:
            self.display.update(step, metrics, self._groups)
        new = self.hints.step(step, metrics, self._statistics) if self.hints is not None else []
        for hint in new:
            self._tell(hint)
        self._groups, self._statistics = (), None
        return new

    def evaluation(
        self, name: str, step: int, metrics: Mapping[str, float], groups: Sequence[ScoredGroup] = ()
    ) -> None:
        """The policy was evaluated; metrics without the prefix `eval_`."""
        if self.writer is not None:
            self.writer.evaluation(name, step, metrics, groups)
        if self.hints is not None:
            self.hints.evaluation(name, step, metrics, sum(len(g.totals) for g in groups))

    def event(self, kind: str, message: str, step: int | None = None, **details: Any) -> None:
        """Something happened; kinds in `schema.EVENT_KINDS`."""
        if self.writer is not None:
            self.writer.event(kind, message, step, **details)

    def sync(self) -> None:
        """Return when what was recorded is on the disk; called before a checkpoint is moved into place."""
        if self.writer is not None:
            self.writer.sync()

    def close(self, end: End = "finished", message: str | None = None, **details: Any) -> None:
        """The run ended: finished, interrupted or failed."""
        if self.writer is not None:
            self.writer.close(end, message, **details)
        if self.display is not None:
            self.display.close()

    def _tell(self, hint: Hint) -> None:
        if self.writer is not None:
            self.writer.event("hint", hint.text(), hint.first_step, **hint.as_dict())
        if self.display is not None:
            self.display.hint(hint.text())
