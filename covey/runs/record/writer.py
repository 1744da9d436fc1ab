"""The record of a run, written by the trainer from its main process.

    writer = RunWriter.open(folder, settings=..., rewards={"accuracy": 1.0})
    statistics = writer.groups(step, scored_groups)
    writer.step(step, metrics, seconds={"sample": 1.2, "score": 0.1, "update": 0.8})
    writer.sync()                      # with every checkpoint
    writer.close("finished")

A record is worth less than its run: where it cannot be written (a full disk), lines are lost and counted, one warning
says so, and training goes on. What is written survives a kill at any moment; what was written before `sync` survives a
power cut too. Resuming from step k takes out whatever was recorded after it, so that no step is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from covey.config.choices import completions_share
from covey.errors import warn
from covey.runs.record import schema, segments
from covey.runs.record.environment import environment as find_environment
from covey.runs.record.environment import git_state, process_facts
from covey.runs.record.group_lines import group_line
from covey.runs.record.group_statistics import group_statistics
from covey.runs.record.header import (
    move_aside,
    read_header,
    settings_changes,
    write_header,
)
from covey.runs.record.json_text import PLACE, Json
from covey.runs.record.jsonl import JsonLines
from covey.runs.record.picture_files import PictureFiles
from covey.runs.record.resume import drop_after
from covey.runs.record.rows import table
from covey.text.secrets import blanked, without_secrets
from covey.types import Prompt, ScoredGroup
from covey.vision.marks import pictures_in

if TYPE_CHECKING:
    from covey.config.vision_settings import RecordPictures

End = Literal["finished", "interrupted", "failed"]


class RunWriter:
    """The open record of a running run. Make one with `RunWriter.open`."""

    def __init__(self, folder: Path, header: Json, task_column: str) -> None:
        self.folder = folder
        self.name = str(header["name"])
        self.weights = dict(header["rewards"])
        self.share = float(header["record_completions"])
        self.task_column = task_column
        self._lines = {
            name: JsonLines(folder / name)
            for name in (schema.STEPS, schema.STATISTICS, schema.EVENTS, schema.EVALUATIONS)
        }
        self._groups = segments.GroupFiles(folder / schema.GROUPS)
        self._pictures = PictureFiles(folder, header.get("record_pictures", "none"))
        self._round = (-1, 0)
        self._lost = 0
        self._has_warned = False
        self._is_closed = False

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        settings: Mapping[str, object],
        rewards: Mapping[str, float],
        changed: Sequence[str] = (),
        name: str | None = None,
        model: Mapping[str, object] | None = None,
        dataset: Mapping[str, object] | None = None,
        plan: Sequence[tuple[str, str]] = (),
        max_steps: int | None = None,
        record_completions: str | float = "all",
        record_pictures: RecordPictures = "thumbnail",
        task_column: str = "task",
        resume_step: int | None = None,
        environment: Mapping[str, object] | None = None,
        git: Mapping[str, object] | None = None,
        tools: Mapping[str, object] | None = None,
    ) -> RunWriter:
        """Begin a record, or go on with one.

        Args:
            folder: the record's own folder, usually `<output_dir>/record`.
            settings, rewards: every setting by name, secrets are blanked; weight by reward name.
            changed: names of the settings that are not at their default, which the page shows first.
            name: name of the run in reports; by default that of the output directory.
            model, dataset, plan, max_steps, environment, git, tools: see `schema.RUN_FIELDS`; what is not given of environment and
                git is found out.
            record_completions, record_pictures: whose texts are recorded (`all`, `none`, or a share of the groups in (0, 1]), and
                how the pictures of these. Numbers are always recorded.
            task_column: the dataset column that names a row's task.
            resume_step: the step of the checkpoint that the run goes on from; what was recorded after it is taken out.
                None begins anew: a record that is already there is moved aside.

        Raises:
            ConfigError: `record_completions` is none of these.
        """
        folder, share = Path(folder), completions_share(record_completions)
        is_resumed = resume_step is not None and schema.is_record(folder)
        if not is_resumed:
            move_aside(folder)
        folder.mkdir(parents=True, exist_ok=True)
        header: Json = {
            "version": schema.VERSION,
            "name": name or folder.resolve().parent.name,
            "started": time.time(),
            "settings": blanked(settings),
            "changed": list(changed),
            "rewards": dict(rewards),
            **{name: dict(facts or {}) for name, facts in (("model", model), ("dataset", dataset))},
            "plan": [list(row) for row in plan],
            "environment": find_environment() if environment is None else dict(environment),
            "git": git_state() if git is None else dict(git),
            "record_completions": share,
            "record_pictures": record_pictures,
            "max_steps": max_steps,
            **({"tools": dict(tools)} if tools else {}),
        }
        return cls._start(folder, header, task_column, resume_step if is_resumed else None)

    @classmethod
    def _start(cls, folder: Path, header: Json, task_column: str, step: int | None) -> RunWriter:
        """Write the head and the first event; with a step, take out of the record what came after it."""
        if step is None:
            write_header(folder, header)
            writer = cls(folder, header, task_column)
            writer.event("started", f"Run {header['name']!r} started.", **process_facts())
            return writer
        before = read_header(folder)
        header["started"] = before.get("started", header["started"])
        dropped = drop_after(folder, step)
        write_header(folder, header)
        writer = cls(folder, header, task_column)
        message = f"Resumed from step {step}." + (
            f" {dropped} later steps were taken out." if dropped else ""
        )
        changed = settings_changes(before, read_header(folder))
        writer.event("resumed", message, step, dropped=dropped, changed=changed, **process_facts())
        return writer

    def step(
        self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float] | None = None
    ) -> None:
        """Record the metrics of an optimizer step, and the wall seconds of its phases."""
        record = {"step": step, "time": time.time(), "metrics": dict(metrics), "seconds": dict(seconds or {})}
        self._keep(lambda: self._lines[schema.STEPS].append(record))

    def groups(self, step: int, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Record the groups that were sampled for a step, and what rewards failed on.

        Once per step, with all groups of the round; groups that come later under the same step are numbered on.

        Returns:
            The statistics of the groups (`group_statistics`), which the hints read too.
        """
        tasks = [self.task(g.group.prompt) for g in groups]
        statistics = group_statistics(groups, tasks, self.weights)
        first = self._round[1] if self._round[0] == step else 0
        self._round = (step, first + len(groups))
        for number, (scored, task) in enumerate(zip(groups, tasks, strict=True), first):
            line = self._line(step, number, scored, task, f"{step}:{number}")
            self._keep(partial(self._groups.append, line))
        self._keep(lambda: self._lines[schema.STATISTICS].append({"step": step, "numbers": statistics}))
        self._keep(self._groups.seal_if_full)
        self._report_failures(step, groups, first)
        return statistics

    def event(self, kind: str, message: str, step: int | None = None, **details: object) -> None:
        """Record that something happened; kinds in `schema.EVENT_KINDS`."""
        record: Json = {"time": time.time(), "step": step, "kind": kind}
        record |= {"message": without_secrets(message), "details": blanked(details)}
        self._keep(lambda: self._lines[schema.EVENTS].append(record))

    def engine(self, facts: Mapping[str, object]) -> None:
        """Write what samples into the head."""
        head = {**read_header(self.folder), "engine": blanked(facts)}
        self._keep(lambda: write_header(self.folder, head))

    def evaluation(
        self, name: str, step: int, metrics: Mapping[str, float], groups: Sequence[ScoredGroup] = ()
    ) -> None:
        """Record an evaluation: its metrics, and a row per completion, which paired tests compare.

        The same rows of the set have their texts recorded every time.
        """
        lines = [
            self._line(step, i, g, self.task(g.group.prompt), f"{name}:{g.group.prompt.row}")
            for i, g in enumerate(groups)
        ]
        if lines:
            path = self.folder / schema.EVALUATION_ROWS / schema.evaluation_file(name, step)
            self._keep(lambda: segments.write_parquet(table(lines), path))
        rows = sum(len(g.totals) for g in groups)
        record = {"step": step, "time": time.time(), "name": name, "metrics": dict(metrics), "rows": rows}
        self._keep(lambda: self._lines[schema.EVALUATIONS].append(record))

    def task(self, prompt: Prompt) -> str | None:
        """Return the task of a prompt: the value of its row in the task column."""
        value = prompt.columns.get(self.task_column)
        return None if value is None else str(value)

    def sync(self) -> None:
        """Return when everything recorded so far is on the disk. For checkpoints: resuming needs what came before."""
        self._report_losses()
        for file in self._lines.values():
            self._keep(file.sync)
        self._keep(self._groups.sync)
        self._keep(self._pictures.sync)

    def close(self, end: End = "finished", message: str | None = None, **details: object) -> None:
        """Record how the run ended and close the files. A second call does nothing."""
        if self._is_closed:
            return
        self._report_losses()
        self.event(end, message or f"Run {end}.", None, **details)
        self.release()

    def release(self) -> None:
        """Close the files, and say nothing of the run."""
        self._keep(self._groups.close)
        for file in self._lines.values():
            file.close()
        self._is_closed = True

    def _line(self, step: int, number: int, scored: ScoredGroup, task: str | None, key: str) -> Json:
        """Return a group as a line; where its texts are kept, its pictures are written too.

        Whether they are is sampled from the key alone, so that a resumed run records the same ones.
        """
        has_texts = self.share >= 1.0
        if not has_texts:
            drawn = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
            has_texts = drawn < self.share * 2**64
        if has_texts:
            self._keep(lambda: self._pictures.add(pictures_in(scored.group.prompt)))
        return group_line(step, number, scored, task, has_texts, self.weights)

    def _keep(self, write: Callable[[], object]) -> None:
        """Write, or count what is lost: a record that cannot be written is not the end of the run."""
        try:
            write()
        except (OSError, UnicodeError) as error:  # a full disk; names that no file can hold
            self._lost += 1
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"The record at {self.folder} cannot be written: {error}. Training goes on; what cannot be written "
                    "is missing from the record. Free space on the disk."
                )

    def _report_losses(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            self.event("record", f"{lost} writes to the record failed.", lost=lost)
        faults, self._pictures.faults = self._pictures.faults, []
        if faults:
            self.event(
                "record", f"{len(faults)} pictures are not recorded: {faults[0]}", pictures=len(faults)
            )

    def _report_failures(self, step: int, groups: Sequence[ScoredGroup], first: int) -> None:
        """Record one event per reward and step: how often it failed, and the first failure in full."""
        failures: dict[str, list[tuple[int, int, str]]] = {}
        for number, group in enumerate(groups, first):
            for name, column in group.scores.items():
                found = [(number, i, s.error or "") for i, s in enumerate(column) if s.status == "failed"]
                if found:
                    failures.setdefault(name, []).extend(found)
        for name, found in failures.items():
            number, index, error = found[0]
            samples = "1 sample" if len(found) == 1 else f"{len(found)} samples"
            self.event(
                "reward_failure", f"Reward {name!r} failed on {samples}.", step,
                reward=name, count=len(found), error=PLACE.sub("", error), group=number, index=index,
            )  # fmt: skip


def add_evaluation(
    folder: Path,
    task_column: str,
    name: str,
    step: int,
    metrics: Mapping[str, float],
    groups: Sequence[ScoredGroup],
) -> None:
    """Add an evaluation to a record that is closed; how the run ended stays as it is."""
    writer = RunWriter(folder, read_header(folder), task_column)
    writer.evaluation(name, step, metrics, groups)
    writer.sync()
    writer.release()
