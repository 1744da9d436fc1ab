"""What a run leaves behind and shows while it goes on: the record, the live display, hints, the completions file.

One object on one process. The trainer tells it what happened; it never asks the trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.plan import Plan
from covey.runs.hints.watch import HintWatch
from covey.runs.record import schema
from covey.runs.record.completions import CompletionLog, completion_rows
from covey.runs.record.tables import printed, send
from covey.runs.record.writer import End, RunWriter
from covey.runs.terminal.display import Display
from covey.trainer.session import RunSession
from covey.types import ScoredGroup


class Recording:
    """The record, the display and the hints of one run.

    Args:
        output_dir: the run's folder; the record lies in `record` inside.
        settings: every setting by name.
        rewards: weight by reward name.
        plan: printed first.
        facts: model and dataset, for the record.
    """

    def __init__(
        self,
        output_dir: str,
        settings: Mapping[str, Any],
        rewards: Mapping[str, float],
        plan: Plan,
        facts: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.output_dir, self.settings, self.rewards, self.plan = Path(output_dir), settings, rewards, plan
        self.facts = facts
        self.session = RunSession()
        self.completions: CompletionLog | None = None
        self._last: tuple[int, Sequence[ScoredGroup]] = (0, ())
        """The step that was sampled for last, and its groups."""

    def begin(self, step: int) -> None:
        """Start, or go on from the step of a checkpoint."""
        name = self.settings.get("run_name") or self.output_dir.name
        display = None
        if self.settings["display"] == "live":
            display = Display(
                f"Plan\n{self.plan}", self.plan.total_steps, name=name, rewards=list(self.rewards)
            )
        else:
            print(f"Plan\n{self.plan}")
        hints = HintWatch(self.settings, self.rewards, self.facts.get("model"))
        self.session = RunSession(
            self._writer(name, step) if self.settings["record"] else None, hints, display
        )
        if self.settings["log_completions"]:
            self.completions = CompletionLog(self.output_dir / "completions.jsonl", step)

    def _writer(self, name: str, step: int) -> RunWriter:
        return RunWriter.open(
            self.output_dir / schema.FOLDER,
            settings=self.settings,
            rewards=self.rewards,
            name=name,
            model=self.facts.get("model"),
            dataset=self.facts.get("dataset"),
            plan=self.plan.table(),
            max_steps=self.plan.total_steps,
            record_completions=self.settings["record_completions"],
            task_column=self.settings["task_column"],
            resume_step=step or None,
        )

    def groups(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """Groups that were sampled and scored for a step."""
        self.session.groups(step, groups)
        self._last = step, groups
        if self.completions is not None:
            self.completions.write(step, groups)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """An optimizer step is done."""
        seconds = {n.removeprefix("time/"): v for n, v in metrics.items() if n.startswith("time/")}
        hints = self.session.step(step, metrics, seconds)
        if self.session.display is None:
            for hint in hints:
                if hint.severity != "note":
                    print(f"hint: {hint.text()}")

    def logged(self, callbacks: Iterable[Any]) -> None:
        """Metrics were logged: the completions sampled last are printed, and sent to the loggers as a table."""
        step, groups = self._last
        rows = list(completion_rows(step, groups))
        for text in printed(rows[: self.settings["num_completions_to_print"] or 0], step):
            print(text)
        if self.settings["log_completions"]:
            send(callbacks, rows, step)

    def sync(self) -> None:
        """Return when what was recorded is on the disk: a checkpoint that is about to be in place rests on it."""
        self.session.sync()
        if self.completions is not None:
            self.completions.sync()

    def close(self, end: End, message: str | None = None, **details: Any) -> None:
        """The run is over; what comes later, such as an evaluation, is not part of it."""
        self.session.close(end, message, **details)
        self.session, self.completions, self._last = RunSession(), None, (0, ())


def resolved_display(setting: str) -> str:
    """'auto' → 'live' on a terminal, 'plain' elsewhere."""
    if setting != "auto":
        return setting
    return "live" if sys.stdout.isatty() else "plain"
