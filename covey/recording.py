"""What a run leaves behind and shows while it goes on: the record, the live display, hints, the completions file.

One object on one process. The trainer tells it what happened; it never asks the trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.groups import ScoredGroup
from covey.plan import Plan
from covey.runs import schema
from covey.runs.completions import CompletionLog
from covey.runs.display import Display
from covey.runs.hints.watch import HintWatch
from covey.runs.writer import End, RunWriter


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
        self.writer: RunWriter | None = None
        self.display: Display | None = None
        self.completions: CompletionLog | None = None
        self.hints = HintWatch(settings, rewards, facts.get("model"))
        self._groups: list[ScoredGroup] = []
        self._statistics: dict[str, float] = {}

    def begin(self, step: int) -> None:
        """Start, or go on from the step of a checkpoint."""
        total = self.plan.total_steps
        if self.settings["record"]:
            self.writer = RunWriter.open(
                self.output_dir / schema.FOLDER,
                settings=self.settings,
                rewards=self.rewards,
                name=self.settings.get("run_name") or self.output_dir.name,
                model=self.facts.get("model"),
                dataset=self.facts.get("dataset"),
                plan=self.plan.table(),
                max_steps=total,
                record_completions=self.settings["record_completions"],
                task_column=self.settings["task_column"],
                resume_step=step or None,
            )
        if self.settings["log_completions"]:
            self.completions = CompletionLog(self.output_dir / "completions.jsonl", step)
        if self.settings["display"] == "live":
            self.display = Display(
                f"Plan\n{self.plan}", total, name=self.output_dir.name, rewards=list(self.rewards)
            )
        else:
            print(f"Plan\n{self.plan}")

    def groups(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """Groups that were sampled and scored for a step."""
        self._groups = list(groups)
        if self.writer is not None:
            self._statistics = self.writer.groups(step, groups)
        if self.completions is not None:
            self.completions.write(step, groups)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """An optimizer step is done."""
        seconds = {n.removeprefix("time/"): v for n, v in metrics.items() if n.startswith("time/")}
        if self.writer is not None:
            self.writer.step(step, metrics, seconds)
        if self.display is not None:
            self.display.update(step, metrics, self._groups)
        for hint in self.hints.step(step, metrics, self._statistics):
            if self.writer is not None:
                self.writer.event("hint", hint.text(), step, **hint.as_dict())
            if self.display is not None:
                self.display.hint(hint.text())
            elif hint.severity != "note":
                print(f"hint: {hint.text()}")

    def evaluation(
        self, name: str, step: int, metrics: Mapping[str, float], groups: Sequence[ScoredGroup]
    ) -> None:
        """An evaluation is done."""
        self.hints.evaluation(name, step, metrics, sum(len(g.totals) for g in groups))
        if self.writer is not None:
            self.writer.evaluation(name, step, metrics, groups)

    def event(self, kind: str, message: str, step: int | None = None, **details: Any) -> None:
        """Something happened."""
        if self.writer is not None:
            self.writer.event(kind, message, step, **details)

    def sync(self) -> None:
        """Everything is on the disk; before a checkpoint is called good."""
        if self.writer is not None:
            self.writer.sync()

    def close(self, end: End, message: str | None = None, **details: Any) -> None:
        """The run is over."""
        if self.display is not None:
            self.display.close()
        if self.writer is not None:
            self.writer.close(end, message, **details)
        self.writer = self.display = None


def resolved_display(setting: str) -> str:
    """'auto' → 'live' on a terminal, 'plain' elsewhere."""
    if setting != "auto":
        return setting
    return "live" if sys.stdout.isatty() else "plain"
