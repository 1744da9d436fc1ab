"""The fast path with turns: rows whose turn has ended go on behind an answer, wait for one, or are over.

A row that waits is parked: its keys and values move to a cache beside the batch's, so that the batch stays dense, and it keeps
the memory that it has reserved. A short answer is given id by id while the others are decoded. A long one is read in chunks by
the rows that got one, alone, in a third cache; then they join the batch again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from covey.sample.native.llama import Llama
from covey.sample.native.scheduler import Scheduler
from covey.sample.native.waiting import WaitingRows
from covey.sample.turns import Answer, Schedule

if TYPE_CHECKING:
    from covey.sample.native.batch import Batch
    from covey.sample.native.episode_rows import EpisodeRows

GIVEN_AT_MOST = 16
"""Ids of an answer that are given one a step. Longer ones are read in chunks, which stops the batch for about a step."""

READ_AT_ONCE = 64
"""Ids of each row that are read in one pass at most."""


class TurnTaking:
    """Asks what follows a turn, and does it.

    Args:
        episodes: the completions of the call.
        batch: those that are decoded.
        scheduler: of the call.
        model: reads long answers.
        schedule: when rows that wait go on.
        prefill_tokens: ids that are read in one pass, those of all rows together.
    """

    def __init__(
        self,
        episodes: EpisodeRows,
        batch: Batch,
        scheduler: Scheduler,
        model: Llama,
        schedule: Schedule,
        prefill_tokens: int,
    ) -> None:
        self.episodes, self.batch, self.table = episodes, batch, batch.table
        self.scheduler, self.model, self.prefill_tokens = scheduler, model, prefill_tokens
        self.waiting = WaitingRows(schedule)
        self.aside = batch.cache.beside()
        """Keys and values of rows that wait."""

    def end(self, rows: Sequence[int], step: int) -> list[int]:
        """Ask what follows the turns that have ended at this step; returns the rows that are over."""
        batch, parked = self.batch, list[int]()
        going, over = list[tuple[int, Answer]](), list[tuple[int, Answer]]()
        batch.note(batch.active)
        rows = sorted(rows)
        for row, ids in zip(rows, self.table.ids[rows].tolist(), strict=True):
            written = int(batch.lengths[row])
            reply = self.episodes.ended(row, ids[:written], self.table.reason(row, ids[written - 1]))
            if not isinstance(reply, Answer):
                self.waiting.add(row, reply, step)
                self.scheduler.park(row)
                parked.append(row)
            else:
                (going if self._accept(row, reply) else over).append((row, reply))
        self.aside.take(parked, batch.cache, batch.held(1))
        self._go_on({row: answer.ids for row, answer in going})
        return [row for row, _ in over]

    def wake(self, step: int) -> list[int]:
        """Let rows go on whose answers are due at this step; returns the rows that are over."""
        batch, going, over = self.batch, {}, []
        due = self.waiting.due(step, self.scheduler.max_sequences - len(self.scheduler.active))
        if not due:
            return []
        batch.note(batch.active)
        for row, answer in due:
            if self._accept(row, answer):
                self.scheduler.wake(row)
                going[row] = answer.ids
            else:
                self.aside.release(row, None)
                over.append(row)
        batch.cache.take(list(going), self.aside, batch.held(1))
        self._go_on(going)
        return over

    def read_openings(self, rows: Sequence[int]) -> None:
        """Read what stands between the prompts of rows that have just entered and their first turns."""
        openings = {row: self.episodes.openings[row] for row in rows}
        long = {row: ids for row, ids in openings.items() if len(ids) > GIVEN_AT_MOST}
        if long:
            for row, ids in long.items():
                self.table.put(row, 0, ids)
            self._read({row: len(ids) - 1 for row, ids in long.items()})

    def _accept(self, row: int, answer: Answer) -> bool:
        """Note an answer; returns whether the completion goes on. Where it does not, the answer's ids end it."""
        goes_on = self.episodes.accept(row, answer)
        if not goes_on:
            self.table.put(row, int(self.batch.lengths[row]), answer.ids)
            self.batch.lengths[row] += len(answer.ids)
        return goes_on

    def _go_on(self, answers: Mapping[int, tuple[int, ...]]) -> None:
        """Let rows of the batch's cache go on behind these ids."""
        table, batch, long = self.table, self.batch, {}
        for row, ids in answers.items():
            written = int(batch.lengths[row])
            is_long = len(ids) > GIVEN_AT_MOST
            table.put(row, written, ids if is_long else ())
            if is_long:
                long[row] = len(ids)
            else:
                self.episodes.give(row, written, ids)
            table.stops.start_turn(row, written + len(ids))
            noted = batch.noted
            noted.token[row], noted.written[row] = table.ids[row, written - 1], written
            noted.done[row] = False
        if long:
            self._read(long)
        batch.arrange()

    def _read(self, numbers: Mapping[int, int]) -> None:
        """Read so many ids of rows in the batch's cache, from their last token on, and note the state behind them."""
        table, batch, left = self.table, self.batch, dict(numbers)
        cache = batch.cache.beside()
        cache.take(list(left), batch.cache, batch.held(1))
        part = batch.beside(cache)
        while any(left.values()):
            at_once = self.prefill_tokens // len(part.rows) or 1
            tokens = min(max(left.values()), READ_AT_ONCE, at_once)
            self._read_chunk(part, tokens)
            for row, more in left.items():
                read = min(tokens, more)
                left[row] -= read
                part.lengths[row] += read
                part.noted.written[row] += read
            part.arrange()
        rows = part.active.rows
        part.noted.token[rows] = table.ids[rows, part.active.written - 1]
        batch.cache.take(list(numbers), cache, batch.held(1))
        batch.arrange()

    def _read_chunk(self, part: Batch, tokens: int) -> None:
        """Read so many ids of every row of a batch, from its last token on; their states are not needed."""
        ids, rows = self.table.ids, part.active.rows
        part.make_room(tokens)
        places = part.active.written[:, None] - 1 + torch.arange(tokens, device=rows.device)
        # Behind the end of a shorter answer anything may be read: what it leaves is overwritten before it is seen.
        read = ids[part.active.rows[:, None], places.clamp(max=ids.shape[1] - 1)].clamp(min=0)
        self.model.step(read, part.next_step(tokens))
