"""The batch that is decoded: who is in it, how long each sequence is, and what the next step reads."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.architectures import Architecture
from covey.sample.native.kv_cache import RESERVED, KvCache
from covey.sample.native.kv_layout import kv_layout
from covey.sample.native.llama import DecodeStep
from covey.sample.native.masks import StepMasks, own_mask, prompt_mask
from covey.sample.native.sequences import ActiveSequences, SequenceTable


class Batch:
    """The sequences that the cache holds.

    Args:
        table: of the call.
        cache: keys and values.
        prompt_of: prompt of each row of the table, shape (rows,).
        shape: of the policy; a mask has a row for each query, and there is one for each window.
        shifts: by prompt, what the place of a token behind it is moved by to make its rotary position; None: nothing.
    """

    def __init__(
        self,
        table: SequenceTable,
        cache: KvCache,
        prompt_of: np.ndarray,
        shape: Architecture,
        shifts: Sequence[int] | None = None,
    ) -> None:
        self.table, self.cache, self.prompt_of, self.shape = table, cache, prompt_of, shape
        self.device = cache.format.device
        self.reads_whole_slots = self.device.type == "cpu" and cache.format.dtype != torch.float32
        """Part of a bfloat16 slot would be copied first on a CPU (see `covey.sample.native.kv_cache.ALIGNED`)."""
        # The spare row continues a prompt of one token.
        self.prompt_lengths = np.append(np.repeat([len(p.ids) for p in table.prompts], table.group_size), 1)
        self._prompt_lengths = torch.from_numpy(self.prompt_lengths).to(self.device)
        self._shifts: Tensor | None = None
        if shifts is not None:  # the spare row continues no picture
            self._shifts = torch.from_numpy(np.append(np.array(shifts)[prompt_of], 0)).to(self.device)
        self.lengths = np.zeros(table.number + 1, dtype=np.int64)
        """Tokens of each completion, by row. On an accelerator those of active ones run ahead between two looks."""
        self.noted = ActiveSequences.start(torch.arange(table.number + 1, device=self.device))
        """The state of every row of the table when the batch was last arranged."""
        self.active = ActiveSequences.start(self.noted.rows[:0])
        self.arrange()

    def rearrange(self, entering: ActiveSequences | None = None) -> None:
        """Take in what the cache holds now, after sequences have entered (those in `entering`), left or moved."""
        for some in (self.active,) if entering is None else (self.active, entering):
            self.note(some)
        self.arrange()

    def note(self, some: ActiveSequences) -> None:
        """Note the state of these sequences, for the time that the batch is arranged anew."""
        noted = self.noted
        noted.token[some.rows], noted.written[some.rows] = some.token, some.written
        noted.done[some.rows] = some.done

    def arrange(self) -> None:
        """Make the batch of what the cache holds now, each sequence in the state that was noted."""
        noted, spare = self.noted, self.table.spare
        noted.token[spare], noted.written[spare], noted.done[spare] = 0, 1, True
        # No longer than any sequence beside it, so that a hole never asks for a longer slot.
        self.lengths[spare] = 1
        self.layout = kv_layout(self.cache, self.prompt_of, spare)
        self.rows = np.array(self.layout.rows, dtype=np.int64)
        """Row of the table for each row of the batch."""
        self.holes = self.layout.rows.count(spare)
        rows = torch.from_numpy(self.rows).to(self.device)
        self.active = ActiveSequences(rows, noted.written[rows], noted.token[rows], noted.done[rows])
        self._starts = self._prompt_lengths[rows][:, None]  # (rows, 1)
        self._moved = None if self._shifts is None else self._shifts[rows][:, None]

    def beside(self, cache: KvCache) -> Batch:
        """Return the batch of another cache's completions of the same call; what is noted is noted for both."""
        other = copy.copy(self)
        other.cache, other.active = cache, ActiveSequences.start(self.noted.rows[:0])
        other.arrange()
        return other

    def make_room(self, tokens: int) -> None:
        """See to it that every sequence can take so many tokens more."""
        held = self.held(tokens)
        of_rows = held[self.rows]
        fits = (int(of_rows[s.rows].max()) <= s.pool.capacity for s in self.layout.segments)
        if not all(fits) and self.cache.make_room(held):
            self.rearrange()

    def next_step(self, tokens: int) -> DecodeStep:
        """Return what the next step reads, so many tokens of each sequence."""
        written = self.active.written[:, None] - 1
        if tokens > 1:
            written = written + torch.arange(tokens, device=self.device)
        positions = self._starts + written  # (rows, tokens)
        offsets = written + RESERVED if self.cache.shares_prompts else positions
        held = self.held(tokens)[self.rows]
        lengths: list[int] = []
        masks: list[Tensor | None] = []
        for segment in self.layout.segments:
            rows = segment.rows
            length, is_exact = int(held[rows].max()), False
            if self.cache.fixed is not None:
                length = min(coarse(length), segment.pool.capacity)  # a graph is captured for each length
            elif self.reads_whole_slots:
                length = segment.pool.capacity
            else:
                is_exact = tokens == 1 and not self.holes and bool((held[rows] == length).all())
            lengths.append(length)
            masks.append(None if is_exact else self._mask(offsets[rows], length))
        by_window: dict[int | None, StepMasks] = {
            None: StepMasks(masks, [s.mask for s in self.layout.prompts])
        }
        for window in self._windows(held):
            pairs = zip(self.layout.segments, lengths, strict=True)
            own = [self._mask(offsets[segment.rows], length, window) for segment, length in pairs]
            prompts = [
                prompt_mask(s, positions, window, self.shape.queries_per_key) for s in self.layout.prompts
            ]
            by_window[window] = StepMasks(own, prompts)
        turned = positions if self._moved is None else positions + self._moved
        return DecodeStep(self.layout, offsets, turned, lengths, by_window)

    def held(self, tokens: int) -> np.ndarray:
        """Return the tokens in the slot of each completion once so many more were read, by row."""
        own = np.minimum(self.lengths, self.table.most) + (tokens - 1)
        return own + (RESERVED if self.cache.shares_prompts else self.prompt_lengths)

    def _windows(self, held: np.ndarray) -> list[int]:
        """Return the windows that some text is longer than; all where a graph is captured for texts of any length."""
        if self.cache.fixed is not None or not self.shape.windows:
            return list(self.shape.windows)
        before = self.prompt_lengths[self.rows] if self.cache.shares_prompts else 0
        longest = int((held + before).max())
        return [window for window in self.shape.windows if window < longest]

    def _mask(self, offsets: Tensor, length: int, window: int | None = None) -> Tensor:
        reserved = RESERVED if self.cache.shares_prompts else 0
        return own_mask(
            offsets, length, self.shape.queries_per_key, self.cache.format.dtype, window, reserved
        )


def coarse(length: int) -> int:
    """Return the next multiple of 64, of 128 from 512 on, of 256 from 1,024 on, ..."""
    step = max(64, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // step) * step
