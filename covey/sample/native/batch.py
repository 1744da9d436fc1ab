"""The batch that is decoded: who is in it, how long each sequence is, and what the next step reads."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.kv_cache import RESERVED, Cache
from covey.sample.native.kv_layout import arrange
from covey.sample.native.live import Live
from covey.sample.native.llama import Step
from covey.sample.native.sequences import Sequences

Reading = Literal["exact", "whole", "coarse"]


class Batch:
    """The sequences that the cache holds.

    Args:
        table: of the call.
        cache: keys and values.
        prompt_of: prompt of each row of the table, shape (rows,).
        prompt_lengths: tokens of each row's prompt, shape (rows,).
        queries_per_key: of the policy; a mask has a row for each query.
        reading: how much of a slot a step reads: "exact" as many tokens as the longest has; "whole" all of it, because
            a part of a bfloat16 slot would be copied first on a CPU (see `covey.sample.native.kv_cache.ALIGNED`); "coarse" one
            of few lengths, because a graph is captured for each.
    """

    def __init__(
        self,
        table: Sequences,
        cache: Cache,
        prompt_of: np.ndarray,
        prompt_lengths: np.ndarray,
        queries_per_key: int,
        reading: Reading,
    ) -> None:
        self.reading = reading
        self.table, self.cache, self.prompt_of = table, cache, prompt_of
        self.queries_per_key = queries_per_key
        self.device = cache.layout.device
        # The spare row continues a prompt of one token.
        self.prompt_lengths = np.append(prompt_lengths, 1)
        self._prompt_lengths = torch.from_numpy(self.prompt_lengths).to(self.device)
        self.lengths = np.zeros(table.number + 1, dtype=np.int64)
        """Tokens of each completion, by row. On an accelerator those of live ones run ahead between two looks."""
        self._token = torch.zeros(table.number + 1, dtype=torch.long, device=self.device)
        self._written = torch.ones(table.number + 1, dtype=torch.long, device=self.device)
        self._done = torch.zeros(table.number + 1, dtype=torch.bool, device=self.device)
        self.live = Live.start(torch.zeros(0, dtype=torch.long, device=self.device))
        self.rearrange()

    def start(self, live: Live) -> None:
        """Note the first tokens of sequences that are not in the batch yet."""
        self._token[live.rows], self._written[live.rows] = live.token, live.written

    def rearrange(self) -> None:
        """Take in what the cache holds now, after sequences have entered, left or moved."""
        self._token[self.live.rows] = self.live.token
        self._written[self.live.rows] = self.live.written
        self._done[self.live.rows] = self.live.done
        spare = self.table.spare
        self._token[spare], self._written[spare], self._done[spare] = 0, 1, True
        # No longer than any sequence beside it, so that a hole never asks for a longer slot.
        self.lengths[spare] = 1
        self.arrangement = arrange(self.cache, self.prompt_of, self.table.spare)
        self.rows = np.array(self.arrangement.rows, dtype=np.int64)
        """Row of the table for each row of the batch."""
        self.holes = sum(self.arrangement.is_hole)
        rows = torch.from_numpy(self.rows).to(self.device)
        self.live = Live(rows, self._written[rows], self._token[rows], self._done[rows])
        self._starts = self._prompt_lengths[rows][:, None]

    def make_room(self, tokens: int) -> None:
        """See to it that every sequence can take so many tokens more."""
        held = self._held(tokens)
        of_rows = held[self.rows]
        fits = (
            int(of_rows[s.start : s.start + s.width].max()) <= s.pool.capacity
            for s in self.arrangement.segments
        )
        if not all(fits) and self.cache.make_room(held):
            self.rearrange()

    def grow(self, by: int | np.ndarray) -> None:
        """Sequences are longer by so many tokens."""
        self.lengths[self.rows] += by

    def next_step(self, tokens: int) -> Step:
        """What the next step reads, so many tokens of each sequence."""
        written = self.live.written[:, None] - 1
        if tokens > 1:
            written = written + torch.arange(tokens, device=self.device)
        positions = self._starts + written
        places = written + RESERVED if self.cache.shares_prompts else positions
        held = self._held(tokens)[self.rows]
        lengths, masks = [], []
        for segment in self.arrangement.segments:
            rows = slice(segment.start, segment.start + segment.width)
            length = self._read_length(int(held[rows].max()), segment.pool.capacity)
            lengths.append(length)
            sees_all = self.reading == "exact" and tokens == 1 and not self.holes
            sees_all = sees_all and bool((held[rows] == length).all())
            masks.append(None if sees_all else self._mask(places[rows], length))
        return Step(self.arrangement, places, positions, lengths, masks)

    def _held(self, tokens: int) -> np.ndarray:
        """Tokens in the slot of each completion once so many more were read, by row."""
        own = np.minimum(self.lengths, self.table.settings.max_new_tokens) + (tokens - 1)
        return own + (RESERVED if self.cache.shares_prompts else self.prompt_lengths)

    def _read_length(self, length: int, capacity: int) -> int:
        """Tokens of a slot that are read."""
        if self.reading == "exact":
            return length
        return capacity if self.reading == "whole" else min(coarse(length), capacity)

    def _mask(self, places: Tensor, length: int) -> Tensor:
        """Added to scores, shape (rows, 1, queries, length); one row of queries stands for all of a single token."""
        is_there = torch.arange(length, device=places.device) <= places[..., None]
        if places.shape[1] > 1:
            is_there = is_there.repeat_interleave(self.queries_per_key, 1)
        mask = torch.zeros(is_there.shape, dtype=self.cache.layout.dtype, device=places.device)
        return mask.masked_fill_(~is_there, float("-inf"))[:, None]


def coarse(length: int) -> int:
    """The next multiple of 64, of 128 from 512 on, of 256 from 1,024 on, ..."""
    step = max(64, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // step) * step
