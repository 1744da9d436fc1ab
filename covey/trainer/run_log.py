"""What a run counts: metrics on their way to the logs and to the record, and events.

Logs may come every few steps; the record has every step; the loss of the whole run goes on over checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from covey.metrics import PHASES, Ledger, Mean, Metric
from covey.runs.record.writer import End
from covey.trainer.recording import Recording


class Books:
    """The numbers of a run that are not out yet, and its record.

    Args:
        gather: every process's value, in the order of the processes.
        recording: on the process that keeps the record; None on the others.
    """

    def __init__(self, gather: Callable[[Any], list[Any]], recording: Recording | None) -> None:
        self.gather, self.recording = gather, recording
        self.log, self.step, self.run = Ledger(), Ledger(), Ledger()

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """By name, for a checkpoint."""
        return {"log": self.log, "step": self.step, "run": self.run}

    def note(self, metrics: Mapping[str, Metric]) -> None:
        """Metrics go to the logs and to the record."""
        self.log.add(metrics)
        self.step.add(metrics)

    def begin_step(self) -> None:
        """What every step has, known by name even if nothing is measured."""
        self.note({f"time/{phase}": Mean(0.0, 1.0) for phase in PHASES})
        self.note({"loss": Mean(0.0, 0.0)})  # the first steps' may not be finite

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the seconds to the phase's mean over optimizer steps, which `begin_step` counts."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.note({f"time/{phase}": Mean(time.perf_counter() - start, 0.0)})

    def numbers_of_step(self) -> dict[str, float]:
        """The step's metrics over all processes; the next step begins with none."""
        numbers = _finished(self._drained(self.step))
        self.run.add({"train_loss": Mean(numbers["loss"])})
        return numbers

    def numbers_of_log(self) -> dict[str, float]:
        """The metrics since the last log over all processes."""
        return _finished(self._drained(self.log))

    def numbers_of_run(self) -> dict[str, float]:
        """The loss over all steps of the run, those before a checkpoint included."""
        return self.run.reduce([self.run.drain()])

    def event(self, kind: str, message: str, step: int) -> None:
        """Record that something happened."""
        if self.recording is not None:
            self.recording.session.event(kind, message, step)

    def close(self, end: End, message: str | None = None, **details: Any) -> None:
        """The run is over."""
        if self.recording is not None:
            self.recording.close(end, message, **details)

    def _drained(self, ledger: Ledger) -> dict[str, float]:
        return ledger.reduce(self.gather(ledger.drain()))


def _finished(numbers: dict[str, float]) -> dict[str, float]:
    return {**numbers, "step_time": sum(numbers[f"time/{phase}"] for phase in PHASES)}
