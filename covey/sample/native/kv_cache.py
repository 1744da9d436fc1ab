"""Keys and values of prompts and of completions.

A prompt is stored once, whoever continues it, or is copied in front of each of its completions (`shares_prompts`). Both live
in pools by length: a completion starts in the pool of the short ones and moves to the next when it has outgrown it, so a
long straggler does not make the others read as much as it does. A pool's slots are as long as its longest completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from covey.sample.native.kv_pool import Layout, Pool

FIRST = 64
"""Tokens up to which a completion is in the first pool; each of the next holds completions of up to twice as many."""

ALIGNED = 32
"""Capacities are multiples of this. oneDNN multiplies bfloat16 matrices only where they are whole, so slots are read to
their ends, and must not be much longer than what is in them."""

RESERVED = 1
"""Places at the start of a completion's slot that are left at zero where prompts are shared: what a sequence says is
attended to together with a place that stands for its whole prompt (see `covey.kernels.decode_attention`)."""


class Cache:
    """Prompts and completions by number.

    Args:
        layout: what one token takes.
        budget: bytes beyond which nothing spare is kept. What sequences can come to is reckoned with elsewhere (see
            `covey.sample.native.scheduler`); while some of them move to longer slots, both are held for a moment.
        shares_prompts: store a prompt once for all of its completions.
        keys_transposed: see `covey.sample.native.kv_pool.Pool`; for completions.
        fixed: the one pool that all completions go into, with room for all of them; prompts are not shared then.
    """

    def __init__(
        self,
        layout: Layout,
        budget: int,
        shares_prompts: bool,
        keys_transposed: bool,
        fixed: Pool | None = None,
    ) -> None:
        assert not (shares_prompts and fixed), "a fixed pool holds whole texts"
        self.layout, self.budget = layout, budget
        self.shares_prompts, self.keys_transposed = shares_prompts, keys_transposed
        self.fixed = fixed
        self.prompts: dict[int, Pool] = {}
        """Pools of prompts by capacity."""
        self.completions: dict[int, Pool] = {}
        """Pools of completions by the length up to which they hold them, the shortest first."""
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
            self._claim(pool, prompts)
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
        """Room for the first token of each of these completions, by number → prompt."""
        lengths = {
            row: 1 + (RESERVED if self.shares_prompts else self.prompt_length[prompt])
            for row, prompt in prompt_of.items()
        }
        reaches = {row: self._reach(length) for row, length in lengths.items()}
        for reach in set(reaches.values()):
            rows = [row for row in lengths if reaches[row] == reach]
            pool = self._pool_for(reach, max(lengths[row] for row in rows))
            slots = self._claim(pool, rows)
            self.pool.update(dict.fromkeys(rows, pool))
            if not self.shares_prompts:
                self._copy_prompts(pool, slots, [prompt_of[row] for row in rows])
        self._note_peak()

    def drop_completion(self, row: int) -> None:
        self.pool.pop(row).release(row)

    def make_room(self, tokens: Any) -> bool:
        """Lengthen slots, or move completions that outgrow their pool; returns whether anything changed.

        Args:
            tokens: what each completion will hold, by number; anything that can be indexed.
        """
        changed = False
        # The longest first, so that a pool has gone on before the next one arrives.
        for reach, pool in sorted(self.completions.items(), reverse=True):
            longest = _longest(pool, tokens)
            if longest <= pool.capacity:
                continue
            changed = True
            leaving = [row for row in pool.slots if tokens[row] > reach]
            if len(leaving) == len(pool.slots) and 2 * reach not in self.completions:
                del self.completions[reach]
                self._add_pool(2 * reach, pool)
            elif leaving:
                self._move(leaving, pool, self._pool_for(2 * reach, _longest(pool, tokens)))
                longest = _longest(pool, tokens)
            if longest > pool.capacity:
                pool.grow(aligned(longest))
            if not pool.slots:
                del self.completions[reach]
        self._note_peak()
        return changed

    def compact(self) -> bool:
        """Close holes where that makes a step narrower; returns whether anything moved."""
        for reach, pool in list(self.completions.items()):
            if not pool.slots:
                del self.completions[reach]
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
        own = max_new_tokens + (RESERVED if self.shares_prompts else prompt_length)
        return aligned(own) * self.layout.bytes_per_token

    def check_integrity(self) -> None:
        """Pools agree with the maps from numbers to pools."""
        for pools, pool_of in ((self.prompts, self.prompt_pool), (self.completions, self.pool)):
            for pool in pools.values():
                pool.check_integrity()
            owned = {owner: pool for pool in pools.values() for owner in pool.slots}
            assert owned == pool_of, "a slot without an owner, or an owner without a slot"
        assert all(pool.capacity <= reach for reach, pool in self.completions.items())
        for prompt, length in self.prompt_length.items():
            assert length <= self.prompt_pool[prompt].capacity
        assert self.peak >= self.bytes or not self.prompt_pool

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _reach(self, length: int) -> int:
        return reach_of(length) if self.fixed is None else self.fixed.capacity

    def _pool_for(self, reach: int, longest: int) -> Pool:
        """The pool of completions up to `reach`, with room for `longest` tokens in each slot."""
        if reach not in self.completions:
            self._add_pool(reach, self.fixed or Pool(self.layout, aligned(longest), self.keys_transposed))
        pool = self.completions[reach]
        if longest > pool.capacity:
            pool.grow(aligned(longest))
        return pool

    def _add_pool(self, reach: int, pool: Pool) -> None:
        self.completions = dict(sorted([*self.completions.items(), (reach, pool)]))

    def _claim(self, pool: Pool, owners: Sequence[int]) -> list[int]:
        """Slots for these; nothing spare is kept where that would be over the budget."""
        more = pool.needed(len(owners)) - len(pool.owners)
        if self.bytes + more * pool.slot_bytes <= self.budget:
            return pool.claim(owners)
        for other in (*self.prompts.values(), *self.completions.values()):
            other.trim()
        return pool.claim(owners, spare=False)

    def _move(self, rows: Sequence[int], source: Pool, target: Pool) -> None:
        """Move contents to longer slots."""
        new = torch.tensor(self._claim(target, rows), device=self.layout.device)
        old = torch.tensor([source.slots[row] for row in rows], device=self.layout.device)
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

    def _copy_prompts(self, pool: Pool, slots: Sequence[int], prompts: Sequence[int]) -> None:
        """Put each prompt in front of its completions."""
        of_prompt: dict[int, list[int]] = {}
        for slot, prompt in zip(slots, prompts, strict=True):
            of_prompt.setdefault(prompt, []).append(slot)
        for prompt, its_slots in of_prompt.items():
            source, length = self.prompt_pool[prompt], self.prompt_length[prompt]
            at = torch.tensor(its_slots, device=self.layout.device)
            for layer in range(self.layout.layers):
                keys = source.keys[layer][source.slots[prompt], :, :length]
                if self.keys_transposed:
                    pool.keys[layer][at, :, :, :length] = keys.transpose(1, 2)
                else:
                    pool.keys[layer][at, :, :length] = keys
                pool.values[layer][at, :, :length] = source.values[layer][source.slots[prompt], :, :length]

    def _note_peak(self) -> None:
        self.peak = max(self.peak, self.bytes)


def aligned(length: int) -> int:
    """The next multiple of ALIGNED."""
    return -(-length // ALIGNED) * ALIGNED


def _longest(pool: Pool, tokens: Any) -> int:
    return int(max((tokens[row] for row in pool.slots), default=0))


def reach_of(length: int) -> int:
    """Which pool a completion of this length is in: FIRST, or a power of two times it."""
    reach = FIRST
    while reach < length:
        reach *= 2
    return reach


def prompt_capacity(length: int) -> int:
    """Capacity of the slot that a prompt is in: a power of two, or one and a half."""
    capacity = ALIGNED
    while capacity < length:
        capacity *= 2
    three_quarters = capacity * 3 // 4
    return three_quarters if length <= three_quarters and three_quarters % ALIGNED == 0 else capacity
