"""Runs the rules: after every step of a run that goes on, or over the record of one that ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from covey.errors import warn
from covey.runs.hints import learning, sampling, sampling_elsewhere, scoring, seeing, tool_use, updating
from covey.runs.hints.hint import SEVERITIES, Hint, Rule
from covey.runs.hints.history import EvaluationPoint, History
from covey.runs.hints.quoting import quoted
from covey.runs.record import schema
from covey.runs.record.header import read_header
from covey.runs.record.jsonl import Tail
from covey.runs.record.reader import read_evaluations
from covey.types import ScoredGroup

RULES: tuple[Rule, ...] = tuple(
    value
    for module in (sampling, sampling_elsewhere, seeing, tool_use, scoring, updating, learning)
    for value in vars(module).values()
    if isinstance(value, Rule)
)
"""Every rule, in the order of the steps: sample, score, update; then those over the whole run."""

PATIENCE = 10
"""Steps without a finding after which it counts as gone."""

MAX_LOOKS = 500
"""Times at which the rules look at the record of a run that ended."""


class HintWatch:
    """The hints of a run that is taken in step by step.

    A hint is given once when it appears, and again only when it was gone in between. `hints` holds all of them with the
    steps over which they held.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        rewards: Mapping[str, float] | None = None,
        model: Mapping[str, object] | None = None,
        patience: int = PATIENCE,
        tools: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self.patience = patience
        known = {name: facts for name, facts in (tools or {}).items() if isinstance(facts, Mapping)}
        self.history = History(settings or {}, rewards or {}, model or {}, known)
        self._held: dict[tuple[str, str], Hint] = {}
        self._gone: list[Hint] = []
        self._warned: dict[str, int] = {}
        """By rule: the last step of the fault that was warned about at once."""

    def sampled(self, step: int, groups: Sequence[ScoredGroup]) -> list[str]:
        """Warn of what leaves a step nothing to learn from, before it is taken; of each fault once in a run.

        Returns:
            What was warned about.
        """
        messages = []
        for rule in RULES:
            message = rule.at_once(groups) if rule.at_once is not None else None
            if message is None:
                continue
            if rule.name not in self._warned:
                warn(f"Step {step}: {message}")
                messages.append(message)
            if step - self._warned.setdefault(rule.name, step) <= self.patience:
                self._warned[rule.name] = step
        return messages

    def step(
        self, step: int, metrics: Mapping[str, float], statistics: Mapping[str, float] | None = None
    ) -> list[Hint]:
        """Take in one step and return the hints that are new."""
        self.history.add(step, metrics, statistics)
        return self.look()

    def evaluation(self, name: str, step: int, metrics: Mapping[str, float], rows: int = 0) -> None:
        """Take in an evaluation; the rules look at it after the next step."""
        self.history.evaluations.append(EvaluationPoint(name, step, metrics, rows))

    def look(self) -> list[Hint]:
        """Ask every rule and return the hints that are new. What was warned about at once, and goes on, is not new."""
        new = []
        now = self.history.step
        for rule, finding in ((r, finding) for r in RULES for finding in r.find(self.history)):
            hint = Hint(
                rule.name, finding.severity or rule.severity, finding.title, finding.evidence,
                (*quoted(rule.name, self.history), *finding.advice), finding.metrics, finding.subject, now, now,
            )  # fmt: skip
            held = self._held.get(hint.key)
            if held is not None and now - held.last_step <= self.patience:
                hint = replace(hint, first_step=held.first_step)
            else:
                if held is not None:
                    self._gone.append(held)
                warned = self._warned.get(rule.name)
                if warned is None or now - warned > self.patience:
                    new.append(hint)
            self._held[hint.key] = hint
        return new

    @property
    def hints(self) -> list[Hint]:
        """Everything found so far, the gravest first."""
        return sorted(
            [*self._gone, *self._held.values()], key=lambda h: (SEVERITIES.index(h.severity), h.first_step)
        )

    def holds(self, hint: Hint) -> bool:
        """Return whether a hint still held at the last step."""
        return self.history.step - hint.last_step <= self.patience


def watch_record(folder: Path) -> HintWatch:
    """Go through a record as if the run were going on, at most `MAX_LOOKS` looks."""
    steps = Tail[schema.StepLine](folder / schema.STEPS, schema.STEPS).read()
    statistics = Tail[schema.StatisticsLine](folder / schema.STATISTICS, schema.STATISTICS).read()
    watch = begin_watch(folder, len(steps))
    numbers = {line["step"]: line["numbers"] for line in statistics}
    replay(watch, steps, numbers, read_evaluations(folder), stride_for(len(steps)))
    return watch


def begin_watch(folder: Path, steps: int = 0) -> HintWatch:
    """Return a watch that has seen nothing yet, for the run of a record, of which so many steps are looked at in one go."""
    header = read_header(folder)
    patience = max(PATIENCE, 2 * stride_for(steps))
    return HintWatch(
        header.get("settings"), header.get("rewards"), header.get("model"), patience, header.get("tools")
    )


def stride_for(steps: int) -> int:
    """Return the steps from one look to the next."""
    return max(1, steps // MAX_LOOKS)


def replay(
    watch: HintWatch,
    steps: Sequence[schema.StepLine],
    statistics: Mapping[int, Mapping[str, float]],
    evaluations: Sequence[schema.EvaluationLine],
    stride: int = 1,
) -> None:
    """Feed recorded lines to a watch, each evaluation before the first step that came after it."""
    lines = sorted(evaluations, key=lambda line: line["step"])
    waiting = [EvaluationPoint(e["name"], e["step"], e["metrics"], e["rows"]) for e in lines]
    for position, line in enumerate(steps):
        while waiting and waiting[0].step < line["step"]:
            watch.history.evaluations.append(waiting.pop(0))
        watch.history.add(line["step"], line["metrics"], statistics.get(line["step"]))
        if position % stride == 0 or position == len(steps) - 1:
            watch.look()
    watch.history.evaluations += waiting
    if waiting and steps:
        watch.look()
