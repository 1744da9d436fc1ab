"""Places of the sequences of a batch in the cache, as index tensors that hold until sequences enter, leave or move.

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

from covey.sample.native.kv_cache import KvCache
from covey.sample.native.kv_pool import KvPool


@dataclass(frozen=True)
class Segment:
    """The rows of the batch that lie in one pool of completions."""

    pool: KvPool
    rows: slice
    """Of the batch."""
    slots: Tensor
    """0 to width - 1, shape (width, 1), where width is the number of rows."""
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
    """Added to scores where prompts are shorter than `length`, shape (width, 1, 1, length), float32."""
    lengths: Tensor
    """Tokens of each prompt, at least 1, shape (width,)."""
    rows: Tensor
    """Rows of the batch that continue each prompt, padded to those of the prompt that has most; shape (width, rows per
    prompt)."""
    members: Tensor
    """Row and head of the batch, prompt by prompt, padded to the rows of the prompt that has most; shape (width · heads ·
    rows per prompt)."""


@dataclass(frozen=True)
class KvLayout:
    """The slots of a batch, and the order in which its queries meet their prompts."""

    rows: list[int]
    """Rows of the table, the spare one for holes."""
    segments: list[Segment]
    prompts: list[PromptSegment]
    back: Tensor
    """Where the result of each row and head stands in the prompts' order, shape (rows · heads)."""


def kv_layout(cache: KvCache, prompt_of: Mapping[int, int] | np.ndarray, spare: int) -> KvLayout:
    """Return the layout of a batch of everything that the cache holds.

    `prompt_of` gives the prompt of each row of the table; its row `spare` stands for holes.
    """
    rows: list[int] = []
    segments = []
    for pool in cache.completions.values():
        width = pool.width
        if not width:
            continue
        keys = [k if pool.keys_transposed else k.transpose(2, 3) for k in pool.keys]
        keys = [k[:width].flatten(0, 1) for k in keys]  # (width · heads, head_dim, capacity)
        values = [v[:width].flatten(0, 1) for v in pool.values]
        slots = torch.arange(width, device=pool.format.device)[:, None]
        segments.append(Segment(pool, slice(len(rows), len(rows) + width), slots, keys, values))
        rows += [spare if owner is None else owner for owner in pool.owners[:width]]
    back = np.zeros((len(rows), cache.format.heads), dtype=np.int64)
    prompts = _prompt_segments(cache, rows, prompt_of, spare, back) if cache.shares_prompts else []
    return KvLayout(rows, segments, prompts, torch.from_numpy(back.reshape(-1)).to(cache.format.device))


def _prompt_segments(
    cache: KvCache,
    rows: list[int],
    prompt_of: Mapping[int, int] | np.ndarray,
    spare: int,
    back: np.ndarray,
) -> list[PromptSegment]:
    """Return the prompts' order; fills in `back`, of shape (rows, heads)."""
    heads = np.arange(cache.format.heads)
    members: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        if row != spare:
            members.setdefault(int(prompt_of[row]), []).append(number)
    segments, start = [], 0
    for pool in cache.prompts.values():
        in_pool = {prompt: m for prompt, m in members.items() if cache.prompt_pool[prompt] is pool}
        if not in_pool:
            continue
        width, most = max(pool.slots[prompt] for prompt in in_pool) + 1, max(map(len, in_pool.values()))
        table, lengths = np.zeros((width, most), dtype=np.int64), [0] * width
        for prompt, numbers in in_pool.items():
            slot = pool.slots[prompt]
            table[slot, : len(numbers)] = numbers
            lengths[slot] = cache.prompt_length[prompt]
            within = (slot * len(heads) + heads) * most + np.arange(len(numbers))[:, None]  # (members, heads)
            back[numbers] = start + within
        segments.append(_prompt_segment(pool, table, lengths))
        start += width * len(heads) * most
    return segments


def _prompt_segment(pool: KvPool, table: np.ndarray, lengths: list[int]) -> PromptSegment:
    """Return a segment.

    Args:
        table: rows of the batch that continue the prompt of each slot, shape (width, rows per prompt).
        lengths: tokens of each slot's prompt; 0 where nobody continues it.
    """
    heads, device = pool.format.heads, pool.format.device
    width, longest = len(table), max(lengths)
    # A slot without readers keeps its first token: a row of nothing but minus infinity has no soft-max.
    reach = torch.tensor([max(length, 1) for length in lengths], device=device)
    mask = None
    if any(0 < length < longest for length in lengths):
        is_there = torch.arange(longest, device=device) < reach[:, None, None, None]  # (width, 1, 1, length)
        mask = torch.zeros_like(is_there, dtype=torch.float32).masked_fill_(~is_there, float("-inf"))
    by_head = table[:, None, :] * heads + np.arange(heads)[None, :, None]  # (width, heads, rows per prompt)
    keys, values = ([t[:width, :, :longest].flatten(0, 1) for t in part] for part in (pool.keys, pool.values))
    on_device = [torch.from_numpy(t).to(device) for t in (table, by_head.reshape(-1))]
    return PromptSegment(keys, values, mask, reach, *on_device)
