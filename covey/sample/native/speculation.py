"""The step that reads guesses: several tokens of a sequence in one pass, as long as they are what is drawn.

See `covey.sample.native.prompt_lookup` for where guesses come from, and why they do not change what is said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.batch import Batch
from covey.sample.native.live import drawn_at
from covey.sample.native.llama import Llama
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.prompt_lookup import Gauge, Index, Memory


class Guesser:
    """Makes guesses for a batch, and reads them.

    Args:
        batch: the sequences.
        prompts: ids of the distinct prompts.
        memory: what was said after them in earlier calls.
    """

    def __init__(self, batch: Batch, prompts: Sequence[tuple[int, ...]], memory: Memory) -> None:
        self.batch, self.table = batch, batch.table
        self.prompts, self.memory = prompts, memory
        self.gauge = Gauge()
        self.indexes: dict[int, Index] = {}

    def guesses(self, number: int) -> list[list[int]]:
        """At most so many guesses for every row of the batch."""
        return [
            [] if row == self.table.spare else self._index_of(row).guess(row, number)
            for row in self.batch.rows.tolist()
        ]

    def _index_of(self, row: int) -> Index:
        """What is known of the texts after the row's prompt, this one up to its last token."""
        prompt = int(self.batch.prompt_of[row])
        if prompt not in self.indexes:
            index = self.indexes[prompt] = Index(self.prompts[prompt])
            for text in self.memory.after(self.prompts[prompt]):
                index.add(text)
            for sibling in np.nonzero(self.batch.prompt_of == prompt)[0].tolist():
                self._catch_up(index, sibling)
        self._catch_up(self.indexes[prompt], row)
        return self.indexes[prompt]

    def _catch_up(self, index: Index, row: int) -> None:
        known, there = index.known(row), int(self.batch.lengths[row])
        if known < there:
            index.extend(row, self.table.ids[row, known:there].tolist())

    def step(
        self, model: Llama, restrictions: Restrictions, tokens: int, guesses: Sequence[Sequence[int]]
    ) -> None:
        """Read the last token and the guesses of each sequence, draw at every position, keep what counts."""
        live = self.batch.live
        read = self._read(tokens, guesses)
        states = model.step(read, self.batch.next_step(tokens))
        ahead = torch.arange(tokens, device=read.device)
        written = (live.written[:, None] + ahead).clamp_(max=self.table.settings.max_new_tokens)
        rows = live.rows.repeat_interleave(tokens)
        drawn = drawn_at(model.logits(states), rows, written.flatten(), self.table, restrictions)
        ids = drawn.ids.view(read.shape)
        kept = self._kept(ids, read, written)
        is_kept = (ahead < kept[:, None]).flatten()
        self.table.record(torch.where(is_kept, rows, self.table.spare), written.flatten(), drawn)
        live.token.copy_(ids.gather(1, (kept - 1).clamp_(min=0)[:, None])[:, 0])
        live.written.add_(kept)
        live.done.logical_or_(self.table.ended(live.token, live.written))
        self._note(kept.tolist(), guesses)

    def _read(self, tokens: int, guesses: Sequence[Sequence[int]]) -> Tensor:
        """Shape (rows, tokens); where there is no guess, token 0 is read, and is almost always wrong."""
        padded = [[*guess, *[0] * (tokens - 1 - len(guess))] for guess in guesses]
        token = self.batch.live.token
        return torch.cat([token[:, None], torch.tensor(padded, device=token.device)], 1)

    def _kept(self, ids: Tensor, read: Tensor, written: Tensor) -> Tensor:
        """How many of the drawn tokens of each sequence count: to the first wrong guess, or to its end."""
        is_right = ids[:, :-1] == read[:, 1:]
        goes_on = is_right & ~self.table.ended(ids, written + 1)[:, :-1]
        return (1 + goes_on.long().cumprod(-1).sum(-1)).masked_fill_(self.batch.live.done, 0)

    def _note(self, kept: list[int], guesses: Sequence[Sequence[int]]) -> None:
        """How many tokens there are now, and how good the guesses were."""
        self.batch.grow(np.array(kept))
        self.gauge.note(sum(map(len, guesses)), sum(max(0, number - 1) for number in kept))
