"""Rows that wait for an answer, and when they go on.

Under the fixed schedule a row goes on a number of steps after its turn has ended, however long the answer took: a late one
is waited for. So what is decoded together, and with it every sum, does not depend on time.
"""

from __future__ import annotations

import time

from covey.sample.turns import Answer, PendingAnswer, Schedule

STEPS = 16
"""Steps after which a row goes on; a multiple of those between two looks (`covey.sample.native.stop_strings.INTERVAL`)."""

POLL_SECONDS = 0.0005


class WaitingRows:
    """Pending answers by row.

    Args:
        schedule: when rows go on.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.pending: dict[int, tuple[int, PendingAnswer]] = {}
        """Row → the step at which it is due, and its answer."""

    def add(self, row: int, pending: PendingAnswer, step: int) -> None:
        """Wait for the answer to a turn whose end was noticed at this step."""
        self.pending[row] = step + STEPS, pending

    def due(self, step: int, most: int) -> list[tuple[int, Answer]]:
        """Return rows that go on at this step, at most so many, in their order, with their answers; late ones are waited for."""
        if most < 1:
            return []
        if self.schedule == "fixed":
            rows = [row for row, (due, _) in self.pending.items() if due <= step]
        else:
            rows = [row for row, (_, pending) in self.pending.items() if pending.ready()]
        return [(row, self.pending.pop(row)[1].wait()) for row in sorted(rows)[:most]]

    def next_step(self, step: int) -> int:
        """Return the step at which the next row goes on where nothing else is decoded."""
        if self.schedule == "fixed":
            return max(step, min(due for due, _ in self.pending.values()))
        while not any(pending.ready() for _, pending in self.pending.values()):
            time.sleep(POLL_SECONDS)
        return step
