"""The general path with turns: which rows are decoded next, and how much of each there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey.sample.native.any_forward import Way
from covey.sample.native.waiting import STEPS, WaitingRows
from covey.sample.turns import Answer, Schedule
from covey.types import Prompt

if TYPE_CHECKING:
    from covey.sample.native.sequences import SequenceTable


class Rounds:
    """Rows by round: each decodes one turn of all rows that have something to read.

    Args:
        table: of the call.
        schedule: whether a round waits for all answers to the one before, or begins with those that are there.
    """

    def __init__(self, table: SequenceTable, schedule: Schedule) -> None:
        self.table, self.episodes = table, table.episodes
        self.lengths = [0] * table.number
        """Tokens of each completion."""
        self.rows = list(range(table.number))
        """Rows that are decoded next."""
        self.waiting = WaitingRows(schedule)
        for row, opening in enumerate(() if self.episodes is None else self.episodes.openings):
            table.put(row, 0, opening)
            self.lengths[row] = len(opening)

    def waves(self, size: int, way: Way) -> list[list[int]]:
        """Take the rows of the next round; returns those that are decoded together, at most `size` each."""
        by_length: dict[int, list[int]] = {}
        for row in sorted(self.rows):
            length = 0 if way.pads else len(self.prompt(row).ids) + self.lengths[row]
            by_length.setdefault(length, []).append(row)
        self.rows = []
        return [rows[n : n + size] for rows in by_length.values() for n in range(0, len(rows), size)]

    def prompt(self, row: int) -> Prompt:
        """Return a row's prompt."""
        return self.table.prompts[row // self.table.group_size]

    def text(self, row: int) -> tuple[int, ...]:
        """Return the ids of a row's prompt and of its completion so far."""
        length, ids = self.lengths[row], self.prompt(row).ids
        return (*ids, *self.table.ids[row, :length].tolist()) if length else ids

    def is_over(self, row: int, length: int) -> bool:
        """Note the end of a turn, and ask what follows; returns whether the completion is over."""
        self.lengths[row] = length
        if self.episodes is None:
            return True
        ids = self.table.ids[row, :length].tolist()
        reply = self.episodes.ended(row, ids, self.table.reason(row, ids[-1]))
        if isinstance(reply, Answer):
            return not self._goes_on(row, reply)
        self.waiting.add(row, reply, 0)
        return False

    def over_by_answers(self) -> list[int]:
        """Take in the answers that rows wait for; returns the rows that are over with them."""
        if not self.waiting.pending:
            return []
        if not self.rows:
            self.waiting.next_step(STEPS)
        answers = self.waiting.due(STEPS, self.table.number)
        return [row for row, answer in answers if not self._goes_on(row, answer)]

    def _goes_on(self, row: int, answer: Answer) -> bool:
        assert self.episodes is not None
        goes_on = self.episodes.accept(row, answer)
        self.table.put(row, self.lengths[row], answer.ids)
        self.lengths[row] += len(answer.ids)
        if goes_on:
            self.table.stops.start_turn(row, self.lengths[row])
            self.rows.append(row)
        return goes_on
