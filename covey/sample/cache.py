"""Keys and values of prompts and of completions.

A prompt is stored once, whoever continues it, or is copied in front of each of its completions (`shares_prompts`). Both live
in pools by capacity: a completion starts in a small slot and moves to one of twice the size when it has filled it, so a
long straggler does not make the others read as much as it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from covey.sample.pools import Layout, Pool

FIRST = 64
"""Tokens of the smallest slot."""

ALIGNED = 32
"""Capacities are multiples of this."""


class Cache:
    """Prompts and completions by number.

    Args:
        layout: what one token takes.
        limit: tokens that a completion can come to, its prompt included where prompts are not shared.
        shares_prompts: store a prompt once for all of its completions.
        keys_transposed: see `covey.sample.pools.Pool`; for completions.
    """

    def __init__(self, layout: Layout, limit: int, shares_prompts: bool, keys_transposed: bool) -> None:
        self.layout, self.limit = layout, -(-limit // ALIGNED) * ALIGNED
        self.shares_prompts, self.keys_transposed = shares_prompts, keys_transposed
        self.prompts: dict[int, Pool] = {}
        """Pools of prompts by capacity."""
        self.completions: dict[int, Pool] = {}
        """Pools of completions by capacity, the smallest first."""
        self.prompt_pool: dict[int, Pool] = {}
        self.prompt_length: dict[int, int] = {}
        self.pool: dict[int, Pool] = {}
        """Completion → its pool."""
        self.peak = 0
        """The most bytes that were held at a time."""

    # --- prompts ------------------------------------------------------------------------------------------------------

    def add_prompts(self, lengths: Mapping[int, int]) -> None:
        """Room for these prompts, by number → tokens."""
        by_capacity: dict[int, list[int]] = {}
        for prompt, length in lengths.items():
            by_capacity.setdefault(prompt_capacity(length), []).append(prompt)
        for capacity, prompts in by_capacity.items():
            pool = self.prompts.setdefault(capacity, Pool(self.layout, capacity, keys_transposed=False))
            pool.claim(prompts)
            for prompt in prompts:
                self.prompt_pool[prompt], self.prompt_length[prompt] = pool, lengths[prompt]
        self._note_peak()

    def drop_prompt(self, prompt: int) -> None:
        pool = self.prompt_pool.pop(prompt)
        del self.prompt_length[prompt]
        pool.release(prompt)
        if not pool.slots:
            del self.prompts[pool.capacity]

    # --- completions --------------------------------------------------------------------------------------------------

    def add_completions(self, prompt_of: Mapping[int, int]) -> None:
        """Room for the first tokens of these completions, by number → prompt."""
        by_capacity: dict[int, list[int]] = {}
        for row, prompt in prompt_of.items():
            first = 1 if self.shares_prompts else self.prompt_length[prompt] + 1
            by_capacity.setdefault(self.capacity_for(first), []).append(row)
        for capacity, rows in by_capacity.items():
            pool = self._completions_of(capacity)
            slots = pool.claim(rows)
            self.pool.update(dict.fromkeys(rows, pool))
            if not self.shares_prompts:
                self._copy_prompts(pool, slots, [prompt_of[row] for row in rows])
        self._note_peak()

    def drop_completion(self, row: int) -> None:
        self.pool.pop(row).release(row)

    def capacity_for(self, tokens: int) -> int:
        """Capacity of the slot that a completion of so many tokens is in."""
        capacity = FIRST
        while capacity < tokens:
            capacity *= 2
        return min(capacity, self.limit)

    def make_room(self, tokens: Any) -> bool:
        """Move completions that are about to outgrow their slots; returns whether any moved.

        Args:
            tokens: what each completion will hold, by number; anything that can be indexed.
        """
        moved = False
        for pool in list(self.completions.values()):
            rows = [row for row in pool.slots if tokens[row] > pool.capacity]
            if rows:
                self._move(rows, pool, self._completions_of(self.capacity_for(pool.capacity + 1)))
                moved = True
        self._note_peak()
        return moved

    def compact(self) -> bool:
        """Close holes where that makes a step narrower; returns whether anything moved."""
        for capacity, pool in list(self.completions.items()):
            if not pool.slots:
                del self.completions[capacity]
        pools: Iterable[Pool] = [*self.completions.values(), *self.prompts.values()]
        moved = [pool.compact() for pool in pools]
        return any(moved)

    # --- numbers ------------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        return sum(pool.bytes for pool in (*self.prompts.values(), *self.completions.values()))

    def prompt_cost(self, length: int) -> int:
        """Bytes of a prompt that is held once for its completions."""
        return prompt_capacity(length) * self.layout.bytes_per_token

    def completion_cost(self, prompt_length: int, max_new_tokens: int) -> int:
        """Bytes that a completion can come to."""
        own = max_new_tokens if self.shares_prompts else prompt_length + max_new_tokens
        return self.capacity_for(own) * self.layout.bytes_per_token

    def check_integrity(self) -> None:
        """Pools agree with the maps from numbers to pools."""
        for pools, pool_of in ((self.prompts, self.prompt_pool), (self.completions, self.pool)):
            for capacity, pool in pools.items():
                pool.check_integrity()
                assert pool.capacity == capacity
            owned = {owner: pool for pool in pools.values() for owner in pool.slots}
            assert owned == pool_of, "a slot without an owner, or an owner without a slot"
        for prompt, length in self.prompt_length.items():
            assert length <= self.prompt_pool[prompt].capacity
        assert self.peak >= self.bytes or not self.prompt_pool

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _completions_of(self, capacity: int) -> Pool:
        if capacity not in self.completions:
            self.completions[capacity] = Pool(self.layout, capacity, self.keys_transposed)
            self.completions = dict(sorted(self.completions.items()))
        return self.completions[capacity]

    def _move(self, rows: Sequence[int], source: Pool, target: Pool) -> None:
        """Move contents to larger slots."""
        old = torch.tensor([source.slots[row] for row in rows], device=self.layout.device)
        new = torch.tensor(target.claim(rows), device=self.layout.device)
        filled = slice(0, source.capacity)
        for layer in range(self.layout.layers):
            if self.keys_transposed:
                target.keys[layer][..., filled].index_copy_(0, new, source.keys[layer][old])
            else:
                target.keys[layer][:, :, filled].index_copy_(0, new, source.keys[layer][old])
            target.values[layer][:, :, filled].index_copy_(0, new, source.values[layer][old])
        self._note_peak()
        for row in rows:
            source.release(row)
            self.pool[row] = target
        if not source.slots:
            del self.completions[source.capacity]

    def _copy_prompts(self, pool: Pool, slots: Sequence[int], prompts: Sequence[int]) -> None:
        """Put each prompt in front of a completion."""
        for slot, prompt in zip(slots, prompts, strict=True):
            source, length = self.prompt_pool[prompt], self.prompt_length[prompt]
            at = source.slots[prompt]
            for layer in range(self.layout.layers):
                keys = source.keys[layer][at, :, :length]
                if self.keys_transposed:
                    pool.keys[layer][slot, :, :, :length] = keys.transpose(1, 2)
                else:
                    pool.keys[layer][slot, :, :length] = keys
                pool.values[layer][slot, :, :length] = source.values[layer][at, :, :length]

    def _note_peak(self) -> None:
        self.peak = max(self.peak, self.bytes)


def prompt_capacity(length: int) -> int:
    """Capacity of the slot that a prompt is in: a power of two, or one and a half."""
    capacity = ALIGNED
    while capacity < length:
        capacity *= 2
    three_quarters = capacity * 3 // 4
    return three_quarters if length <= three_quarters and three_quarters % ALIGNED == 0 else capacity
