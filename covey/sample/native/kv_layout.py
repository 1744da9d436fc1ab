"""Where the sequences of a batch lie in the cache, as index tensors that hold until sequences enter, leave or move.

Rows of the batch follow the slots of the pools, one pool after the other; a hole is a row that nobody reads. Queries meet
their prompts in another order, prompt by prompt, so that all completions of a prompt multiply with its keys at once:

    batch     row 0 (prompt A)   row 1 (prompt B)   row 2 (prompt A)   row 3 (hole)
    prompts   A: row 0, row 2        B: row 1, (padding)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.kv_cache import Cache
from covey.sample.native.kv_pool import Pool


@dataclass(frozen=True)
class Segment:
    """The rows of the batch that lie in one pool of completions."""

    pool: Pool
    start: int
    """First row of the batch."""
    width: int
    slots: Tensor
    """0 to width - 1, shape (width, 1)."""
    keys: list[Tensor]
    """Per layer, shape (width · heads, head_dim, capacity)."""
    values: list[Tensor]
    """Per layer, shape (width · heads, capacity, head_dim)."""


@dataclass(frozen=True)
class PromptSegment:
    """The prompts of one pool, and the rows of the batch that continue them."""

    keys: list[Tensor]
    """Per layer, shape (width · heads, length, head_dim)."""
    values: list[Tensor]
    mask: Tensor | None
    """Added to scores where prompts are shorter than `length`, shape (width · heads, 1, length), float32."""
    members: Tensor
    """Row and head of the batch for each place, shape (width · heads · places)."""
    places: int
    """Rows per prompt, padded to those of the prompt that has most."""


@dataclass(frozen=True)
class Arrangement:
    """A batch."""

    rows: list[int]
    """Rows of the table, the spare one for holes."""
    is_hole: list[bool]
    segments: list[Segment]
    prompts: list[PromptSegment]
    back: Tensor
    """Where the result of each row and head stands in the prompts' order, shape (rows · heads)."""

    @property
    def size(self) -> int:
        return len(self.rows)


def arrange(cache: Cache, prompt_of: Mapping[int, int] | np.ndarray, spare: int) -> Arrangement:
    """The batch of everything that the cache holds.

    Args:
        prompt_of: row of the table → prompt.
        spare: row of the table that stands for holes.
    """
    rows: list[int] = []
    segments = []
    for pool in cache.completions.values():
        width = pool.width
        if width:
            segments.append(_segment(pool, len(rows), width))
            rows += [spare if owner is None else owner for owner in pool.owners[:width]]
    back = np.zeros((len(rows), cache.layout.heads), dtype=np.int64)
    prompts = _prompt_segments(cache, rows, prompt_of, spare, back) if cache.shares_prompts else []
    is_hole = [row == spare for row in rows]
    return Arrangement(
        rows, is_hole, segments, prompts, torch.from_numpy(back.reshape(-1)).to(cache.layout.device)
    )


def _segment(pool: Pool, start: int, width: int) -> Segment:
    keys = [k[:width].flatten(0, 1) for k in pool.keys]
    return Segment(
        pool=pool,
        start=start,
        width=width,
        slots=torch.arange(width, device=pool.layout.device)[:, None],
        keys=keys if pool.keys_transposed else [k.transpose(1, 2) for k in keys],
        values=[v[:width].flatten(0, 1) for v in pool.values],
    )


def _prompt_segments(
    cache: Cache,
    rows: list[int],
    prompt_of: Mapping[int, int] | np.ndarray,
    spare: int,
    back: np.ndarray,
) -> list[PromptSegment]:
    """The prompts' order; fills in `back`, of shape (rows, heads)."""
    heads = np.arange(cache.layout.heads)
    members: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        if row != spare:
            members.setdefault(int(prompt_of[row]), []).append(number)
    segments, start = [], 0
    for pool in cache.prompts.values():
        used = {pool.slots[p]: m for p, m in members.items() if cache.prompt_pool[p] is pool}
        if not used:
            continue
        width, places = max(used) + 1, max(map(len, used.values()))
        table = np.zeros((width, places), dtype=np.int64)
        for slot, numbers in used.items():
            table[slot, : len(numbers)] = numbers
            within = (slot * len(heads) + heads) * places + np.arange(len(numbers))[:, None]
            back[numbers] = start + within
        segments.append(_prompt_segment(cache, pool, table, set(used)))
        start += width * len(heads) * places
    return segments


def _prompt_segment(cache: Cache, pool: Pool, table: np.ndarray, used: set[int]) -> PromptSegment:
    width, places = table.shape
    heads, device = cache.layout.heads, cache.layout.device
    lengths = [0] * width
    for slot in used:
        owner = pool.owners[slot]
        assert owner is not None
        lengths[slot] = cache.prompt_length[owner]
    longest = max(lengths)
    mask = None
    if any(lengths[slot] != longest for slot in used):
        # A slot without readers keeps its first token: a row of nothing but minus infinity has no soft-max.
        reach = torch.tensor([max(length, 1) for length in lengths], device=device)
        is_there = torch.arange(longest, device=device) < reach[:, None]
        mask = torch.zeros(width, 1, longest, device=device).masked_fill_(~is_there[:, None], float("-inf"))
        mask = mask.repeat_interleave(heads, 0)
    by_head = table[:, None, :] * heads + np.arange(heads)[None, :, None]
    members = torch.from_numpy(by_head.reshape(-1)).to(device)
    keys, values = (
        [t[:width, :, :longest].flatten(0, 1) for t in tensors] for tensors in (pool.keys, pool.values)
    )
    return PromptSegment(keys, values, mask, members, places)
