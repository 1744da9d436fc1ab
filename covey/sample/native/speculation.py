"""The step that verifies drafts: several tokens of a sequence in one pass, as long as they are what is drawn.

See `covey.sample.native.prompt_lookup` for where drafts come from, and why they do not change the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from covey.sample.native.llama import Llama
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.prompt_lookup import AcceptanceRate, CompletionIndex, NgramIndex
from covey.types import Prompt

if TYPE_CHECKING:
    from covey.sample.native.batch import Batch


class Speculator:
    """Proposes drafts for a batch, and verifies them.

    Args:
        batch: the sequences.
        prompts: the distinct ones.
        completions: of earlier calls.
    """

    def __init__(self, batch: Batch, prompts: Sequence[Prompt], completions: CompletionIndex) -> None:
        self.batch, self.table = batch, batch.table
        self.prompts, self.completions = prompts, completions
        self.acceptance = AcceptanceRate()
        self.indexes: dict[int, NgramIndex] = {}

    def propose(self, number: int) -> list[list[int]]:
        """Return at most so many draft tokens for every row of the batch."""
        drafts: list[list[int]] = []
        for row in self.batch.rows.tolist():
            if row == self.table.spare:
                drafts.append([])
                continue
            if given := self._given(row, number):
                drafts.append(given)
                continue
            prompt = int(self.batch.prompt_of[row])
            if prompt not in self.indexes:
                its_own = self.prompts[prompt]
                earlier = self.completions.by_prompt.get(its_own.key, ())
                index = self.indexes[prompt] = NgramIndex(its_own.ids, earlier)
                for sibling in np.nonzero(self.batch.prompt_of == prompt)[0].tolist():
                    index.extend(sibling, self.table.ids[sibling, : self.batch.lengths[sibling]])
            self.indexes[prompt].extend(row, self.table.ids[row, : self.batch.lengths[row]])
            drafts.append(self.indexes[prompt].propose(row, number))
        return drafts

    def forget_behind(self, rows: Sequence[int]) -> None:
        """Forget what was decoded behind the ends of these rows' turns."""
        for row in rows:
            index = self.indexes.get(int(self.batch.prompt_of[row]))
            if index is not None:
                index.shorten(row, int(self.batch.lengths[row]))

    def _given(self, row: int, number: int) -> list[int]:
        """Return the next ids that are given to a row, at most so many; as drafts they are always right."""
        episodes = self.table.episodes
        return [] if episodes is None else episodes.upcoming(row, int(self.batch.lengths[row]), number)

    def step(
        self, model: Llama, restrictions: Restrictions, tokens: int, drafts: Sequence[Sequence[int]]
    ) -> None:
        """Read the last token and the draft of each sequence, draw at every position, keep what counts.

        Args:
            tokens: that each sequence reads.
            drafts: for every row of the batch, at most `tokens` - 1 each.
        """
        active, table = self.batch.active, self.table
        # Where there is no draft, token 0 is read, and is almost always wrong.
        padded = [[*draft, *[0] * (tokens - 1 - len(draft))] for draft in drafts]
        read = torch.cat([active.token[:, None], torch.tensor(padded, device=active.token.device)], 1)
        states = model.step(read, self.batch.next_step(tokens))
        ahead = torch.arange(tokens, device=read.device)
        # (rows, tokens)
        written = (active.written[:, None] + ahead).clamp_(max=table.ids.shape[1] - 1)
        rows = active.rows.repeat_interleave(tokens)
        sampled = table.draw(model.logits(states), rows, written.flatten(), restrictions)

        # Tokens count up to the first wrong draft token, or to the end of the sequence.
        ids = sampled.ids.view(read.shape)
        goes_on = (ids[:, :-1] == read[:, 1:]) & ~table.ended(active.rows[:, None], ids, written + 1)[:, :-1]
        kept = (1 + goes_on.long().cumprod(-1).sum(-1)).masked_fill_(active.done, 0)  # (rows,)
        is_kept = (ahead < kept[:, None]).flatten()
        table.record(torch.where(is_kept, rows, table.spare), written.flatten(), sampled)
        active.token.copy_(ids.gather(1, (kept - 1).clamp_(min=0)[:, None])[:, 0])
        active.written.add_(kept)
        active.done.logical_or_(table.ended(active.rows, active.token, active.written))
        numbers = kept.tolist()
        guesses = [
            (len(draft), max(0, number - 1))
            for row, draft, number in zip(self.batch.rows.tolist(), drafts, numbers, strict=True)
            if not self._given(row, 1)
        ]
        self.batch.lengths[self.batch.rows] += numbers
        self.acceptance.update(sum(drafted for drafted, _ in guesses), sum(right for _, right in guesses))
