"""Metrics not yet logged, and everything that a run leaves behind: the record, the display, hints, the completions file.

One object per process. Every process buffers its metrics and reduces them together with the others; process 0 also writes
and shows. The trainer tells it what happened; it never asks the trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.utils import is_in_notebook

from covey.config import GRPOConfig
from covey.config.validation import defaults
from covey.errors import EngineError
from covey.metrics import PHASES, Ledger, Mean, Metrics, Total, timed
from covey.plan import Plan
from covey.runs.hints import Hint, HintWatch
from covey.runs.record import schema
from covey.runs.record.completions_jsonl import CompletionLog, completion_rows
from covey.runs.record.group_statistics import group_statistics
from covey.runs.record.header import start_time
from covey.runs.record.picture_files import small
from covey.runs.record.tables import printed, send
from covey.runs.record.writer import End, RunWriter, add_evaluation
from covey.runs.terminal.display import Display
from covey.sample.engine import Engine
from covey.text.foreign import show
from covey.types import Gather, Picture, ScoredGroup
from covey.vision.marks import pictures_in
from covey.vision.pictures import PictureError, reopened

if TYPE_CHECKING:
    from PIL.Image import Image


class RunLog:
    """Buffers metrics per step, per log and per run, and feeds the record, the hints and the display.

    Logs may come every few steps; the record has every step; the loss of the whole run goes on over checkpoints. Before
    `begin` and after `close`, and on every process but the first, nothing is written or shown.

    Args:
        args: the settings.
        rewards: weight by reward name.
        plan: printed first.
        facts: of `model`, `dataset` and `tools`, for the record and the hints.
        gather: returns every process's value.
    """

    def __init__(
        self,
        args: GRPOConfig,
        rewards: Mapping[str, float],
        plan: Plan,
        facts: Mapping[str, Mapping[str, Any]],
        gather: Gather,
    ) -> None:
        self.args, self.rewards, self.plan, self.facts, self.gather = args, rewards, plan, facts, gather
        self.task_column = args.task_column
        """Where rows name their task; empty where what they name is no task."""
        self.tasks: Sequence[str] = ()
        """Those that the training dataset is known to have."""
        self.settings = {**args.to_dict(), "display": resolved_display(args.display)}
        self.log, self.step, self.run = Ledger(), Ledger(), Ledger()
        self.writer: RunWriter | None = None
        self.hints: HintWatch | None = None
        self.display: Display | None = None
        self.completions: CompletionLog | None = None
        self.earlier: list[tuple[str, Mapping[str, float], Sequence[ScoredGroup]]] = []
        """Evaluations before the run, which wait for its record."""
        self.engine: Engine | None = None
        """What samples; set once it is made."""
        self._has_engine = False
        self.record: tuple[Path, float] | None = None
        """Folder and start of the record that was closed last; an evaluation after the run goes there."""
        self._sent: set[str] = set()
        """Digests of the pictures that loggers have."""
        self._sampled: tuple[int, Sequence[ScoredGroup], Mapping[str, float] | None] = (0, (), None)
        """The step that was sampled for last, its groups, and their statistics."""

    def change_settings(
        self, args: GRPOConfig, rewards: Mapping[str, float], plan: Plan, changes: str, step: int
    ) -> None:
        """Go on with other settings, which the record names from here on."""
        self.args, self.rewards, self.plan = args, rewards, plan
        self.settings = {**args.to_dict(), "display": self.settings["display"]}
        self.event("settings", f"Settings changed: {changes}.", step)

    # --- metrics, on every process ----------------------------------------------------------------------------------

    def note(self, metrics: Metrics) -> None:
        """Add metrics to the next log and to the step's record."""
        self.log.add(metrics)
        self.step.add(metrics)

    def note_engine(self, numbers: Mapping[str, float]) -> None:
        """Add an engine's numbers of one round of this process: what it drew and lost adds up, of seconds and gaps the mean counts."""
        counted = ("engine/tokens/", "engine/retries", "engine/lost")
        self.note({n: Total(v) if n.startswith(counted) else Mean(v) for n, v in numbers.items()})

    def begin_step(self) -> None:
        """Note the names that every step has, so that they are logged even where nothing is measured."""
        self.note({f"time/{phase}": Mean(0.0, 1.0) for phase in PHASES})
        self.note({"loss": Mean(0.0, 0.0)})  # the first steps' may not be finite

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Return what adds the seconds inside to the phase's mean over optimizer steps, which `begin_step` counts."""
        return timed(self.note, f"time/{phase}")

    def reduce_step(self) -> dict[str, float]:
        """Return the step's metrics over all processes, and begin the next step. Collective."""
        numbers = self._reduced(self.step)
        self.run.add({"train_loss": Mean(numbers["loss"])})
        return numbers

    def reduce_log(self) -> dict[str, float]:
        """Return the metrics since the last log over all processes. Collective."""
        return self._reduced(self.log)

    def reduce_tail(self) -> dict[str, float]:
        """Return the metrics of the steps since the last log, at the end of a run; none where every step was logged. Collective."""
        steps = sum(bool(part) for part in self.gather("loss" in self.log.names()))
        return self.reduce_log() if steps else {}

    def reduce_run(self) -> dict[str, float]:
        """Return the mean loss over all steps of the run, those before a checkpoint included."""
        return self.run.reduce([self.run.drain()])

    def _reduced(self, ledger: Ledger) -> dict[str, float]:
        numbers = ledger.reduce(self.gather(ledger.drain()))
        return {**numbers, "step_time": sum(numbers[f"time/{phase}"] for phase in PHASES)}

    # --- the record, the hints and the display, on process 0 ------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Open the record and the display, or go on with them from the step of a checkpoint."""
        if self.args.process_index != 0:
            return
        assert self.args.output_dir is not None, "TrainingArguments fills it"
        assert self.args.record_completions is not None
        folder, rewards = Path(self.args.output_dir), list(self.rewards)
        name = self.args.run_name or folder.name
        text = f"Plan\n{self.plan}\n"
        if note := self.facts.get("threads", {}).get("note"):
            text += f"\n{note}\n"
        if self.args.record:
            text += f"\nThe record is in {folder / schema.FOLDER}: covey watch {folder}, report {folder}, doctor {folder}.\n"
        is_live = self.settings["display"] == "live"
        self.display = Display(text, self.plan.total_steps, name=name, rewards=rewards, is_live=is_live)
        tools = self.facts.get("tools")
        self.hints = HintWatch(self.settings, self.rewards, self.facts.get("model"), tools=tools)
        if self.args.record:
            self.writer = RunWriter.open(
                folder / schema.FOLDER,
                settings=self.settings,
                changed=changed_settings(self.args),
                rewards=self.rewards,
                name=name,
                model=self.facts.get("model"),
                dataset=self.facts.get("dataset"),
                plan=self.plan.table(),
                max_steps=self.plan.total_steps,
                record_completions=self.args.record_completions,
                record_pictures=self.args.record_pictures,
                task_column=self.task_column,
                resume_step=step or None,
                tools=tools,
            )
            for evaluation in self.earlier if step == 0 else ():
                self.writer.evaluation(evaluation[0], 0, *evaluation[1:])
        self.earlier.clear()
        if self.args.log_completions:
            self.completions = CompletionLog(folder / "completions.jsonl", step)

    def record_groups(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """Record the groups of all processes that were sampled and scored for a step."""
        self._tell_engine(step)
        statistics = None
        if self.writer is not None:
            statistics = self.writer.groups(step, groups)
        elif self.hints is not None:
            statistics = group_statistics(groups, [None] * len(groups), self.hints.history.rewards)
        if self.hints is not None:
            for message in self.hints.sampled(step, groups):
                self.event("warning", message, step)
        if self.completions is not None:
            self.completions.write(step, groups)
        self._sampled = step, groups, statistics

    def _tell_engine(self, step: int) -> None:
        """Record what samples, once in a run: servers are known when they have sampled."""
        if self.engine is None or self._has_engine or self.display is None:
            return
        try:
            facts = dict(self.engine.facts)
        except EngineError:  # a server is gone by now; the next round tells
            return
        self._has_engine = True
        if self.writer is not None:
            self.writer.engine(facts)
        if isinstance(urls := facts.get("urls"), list):
            name = f"{facts['kind']} {facts.get('release') or ''}".rstrip()
            message = f"Sampled by {name} at {', '.join(urls)}."
            self.event("engine", message, step, engine=facts)
            self.say(message)

    def record_step(self, step: int, metrics: Mapping[str, float]) -> list[Hint]:
        """Record an optimizer step, show it, and return the hints that are new."""
        sampled_for, groups, statistics = self._sampled
        if step != sampled_for:
            groups, statistics = (), None
        if self.writer is not None:
            seconds = {n.removeprefix("time/"): v for n, v in metrics.items() if n.startswith("time/")}
            self.writer.step(step, metrics, seconds)
        if self.display is not None and self.display.is_live:
            self.display.update(step, metrics, groups)
        new = self.hints.step(step, metrics, statistics) if self.hints is not None else []
        for hint in new:
            self.event("hint", hint.text(), hint.first_step, **hint.as_dict())
            if self.display is not None and (self.display.is_live or hint.severity != "note"):
                self.display.hint(hint.text())
        return new

    def show_log(self, logs: Mapping[str, float], step: int) -> None:
        """Print a line about a log of training or of an evaluation, where no live display shows every step."""
        if self.display is None or self.settings["display"] == "notebook":
            return
        means = {n: v for n, v in logs.items() if n.startswith("eval_") and n.endswith(("reward", "/mean"))}
        if means:
            self.display.evaluated(step, {name.removesuffix("/mean"): value for name, value in means.items()})
        elif "loss" in logs and not self.display.is_live:
            self.display.update(step, logs)

    def record_evaluation(
        self, name: str, step: int, metrics: Mapping[str, float], groups: Sequence[ScoredGroup] = ()
    ) -> None:
        """Record an evaluation; `metrics` without the prefix `eval_`. One before the run waits for the record; one after it is added."""
        if self.writer is not None:
            self.writer.evaluation(name, step, metrics, groups)
        elif self.args.record and self.args.process_index == 0:
            if self.record is None:
                self.earlier.append((name, metrics, groups))
            elif start_time(self.record[0]) == self.record[1]:
                add_evaluation(self.record[0], self.args.task_column, name, step, metrics, groups)
        if self.hints is not None:
            self.hints.evaluation(name, step, metrics, sum(len(g.totals) for g in groups))

    def event(self, kind: str, message: str, step: int | None = None, **details: object) -> None:
        """Record that something happened; kinds in `schema.EVENT_KINDS`."""
        if self.writer is not None:
            self.writer.event(kind, message, step, **details)

    def say(self, message: str) -> None:
        """Print a sentence on process 0, above the live display where there is one."""
        if self.display is not None:
            self.display.say(message)
        elif self.args.process_index == 0:
            show(message, flush=True)

    def show_completions(self, callbacks: Iterable[TrainerCallback]) -> None:
        """Print the completions that were sampled last, and send them to the loggers as a table."""
        if self.hints is None:  # closed, or another process
            return
        step, groups, _ = self._sampled
        rows = list(completion_rows(step, groups))
        if self.args.log_unique_prompts:
            rows = list({str(row["prompt"]): row for row in reversed(rows)}.values())[::-1]
        for text in printed(rows[: self.args.num_completions_to_print or 0], step):
            show(text)
        if self.args.log_completions:
            send(callbacks, rows, step, self._new_pictures(groups))

    def _new_pictures(self, groups: Sequence[ScoredGroup]) -> list[tuple[Picture, Image]]:
        """Return the pictures of these groups that loggers do not have yet, small; none where they are to have none."""
        if not self.args.log_multimodal or self.args.record_pictures == "none":
            return []
        shown = {
            p.digest: p for g in groups for p in pictures_in(g.group.prompt) if p.digest not in self._sent
        }
        self._sent |= shown.keys()
        found = []
        for picture in shown.values():
            try:
                found.append((picture, small(reopened(picture))))
            except PictureError as error:
                self.event("warning", f"Loggers do not get a picture: {error}", self._sampled[0])
        return found

    def sync(self) -> None:
        """Return when what was recorded is on the disk: a checkpoint that is about to be in place rests on it."""
        for file in (self.writer, self.completions):
            if file is not None:
                file.sync()

    def close(self, end: End, message: str | None = None, **details: object) -> None:
        """Close record and display; an evaluation that comes later is added to the closed record."""
        if self.writer is not None:
            self.writer.close(end, message, **details)
            self.record = self.writer.folder, start_time(self.writer.folder) or 0.0
        if self.display is not None:
            self.display.close()
        self.writer = self.hints = self.display = self.completions = None
        self._sampled, self._has_engine = (0, (), None), False


def changed_settings(args: GRPOConfig) -> list[str]:
    """Return the settings that are not at their default, because they were given or because the machine decided."""
    return [
        name for name, standard in defaults(type(args)).items() if getattr(args, name, standard) != standard
    ]


def resolved_display(setting: str) -> str:
    """Return what 'auto' means here: 'live' on a terminal, 'notebook' in one, else 'plain'; any other setting as it is."""
    if setting != "auto":
        return setting
    if is_in_notebook():
        return "notebook"
    return "live" if sys.stdout is not None and sys.stdout.isatty() else "plain"
