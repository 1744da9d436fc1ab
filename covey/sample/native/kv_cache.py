"""Keys and values of prompts and of completions.

A prompt is stored once for all of its completions, or is copied in front of each of them (`shares_prompts`). Both live
in pools by length: a completion starts in the pool of the short ones and moves to the next when it has outgrown it, so a
long straggler does not make the others read as much as it does. A pool's slots are as long as its longest completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from covey.sample.native.kv_pool import KvFormat, KvPool

FIRST = 64
"""Tokens up to which a completion is in the first pool; each of the next holds completions of up to twice as many."""

ALIGNED = 32
"""Capacities are multiples of this. oneDNN multiplies bfloat16 matrices only where they are whole, so slots are read to
their ends, and must not be much longer than what is in them."""

RESERVED = 1
"""Tokens at the start of a completion's slot that are left at zero where prompts are shared: a completion is attended to
together with one token that stands for its whole prompt (see `covey.kernels.decode_attention`)."""


class KvCache:
    """Prompts and completions by number.

    Args:
        format: of a token.
        budget: bytes beyond which nothing spare is kept. What sequences can come to is reckoned with elsewhere (see
            `covey.sample.native.scheduler`); while some of them move to longer slots, both are held for a moment.
        shares_prompts: store a prompt once for all of its completions.
        fixed: the one pool that all completions go into, with room for all of them; prompts are not shared then.
    """

    def __init__(
        self, format: KvFormat, budget: int, shares_prompts: bool, fixed: KvPool | None = None
    ) -> None:
        assert not (shares_prompts and fixed), "a fixed pool holds whole texts"
        self.format, self.budget = format, budget
        self.shares_prompts, self.fixed = shares_prompts, fixed
        self.keys_transposed = format.device.type == "cpu" if fixed is None else fixed.keys_transposed
        """How pools of completions store keys."""
        self.prompts: dict[int, KvPool] = {}
        """Pools of prompts by capacity."""
        self.completions: dict[int, KvPool] = {}
        """Pools of completions by the length up to which they hold them, the shortest first."""
        self.prompt_pool: dict[int, KvPool] = {}
        self.prompt_length: dict[int, int] = {}
        self.pool: dict[int, KvPool] = {}
        """Completion → its pool."""
        self.peak = 0
        """The most bytes that were held at a time."""

    # --- prompts ------------------------------------------------------------------------------------------------------

    def add_prompts(self, lengths: Mapping[int, int]) -> None:
        """Make room for these prompts, by number → tokens."""
        by_capacity: dict[int, list[int]] = {}
        for prompt, length in lengths.items():
            by_capacity.setdefault(prompt_capacity(length), []).append(prompt)
        for capacity, prompts in by_capacity.items():
            pool = self.prompts.setdefault(capacity, KvPool(self.format, capacity, keys_transposed=False))
            self._claim(pool, prompts)
            for prompt in prompts:
                self.prompt_pool[prompt], self.prompt_length[prompt] = pool, lengths[prompt]
        self._note_peak()

    # --- completions --------------------------------------------------------------------------------------------------

    def add_completions(self, prompt_of: Mapping[int, int]) -> None:
        """Make room for the first token of each of these completions, by number → prompt."""
        lengths = {
            row: 1 + (RESERVED if self.shares_prompts else self.prompt_length[prompt])
            for row, prompt in prompt_of.items()
        }
        by_reach: dict[int, list[int]] = {}
        for row, length in lengths.items():
            by_reach.setdefault(self._reach(length), []).append(row)
        for reach, rows in by_reach.items():
            pool = self._pool_for(reach, max(lengths[row] for row in rows))
            slots = self._claim(pool, rows)
            self.pool.update(dict.fromkeys(rows, pool))
            if not self.shares_prompts:
                self._copy_prompts(pool, slots, [prompt_of[row] for row in rows])
        self._note_peak()

    def beside(self) -> KvCache:
        """Return an empty cache for other completions of the same prompts."""
        other = KvCache(self.format, self.budget, self.shares_prompts)
        other.prompts, other.prompt_pool = self.prompts, self.prompt_pool
        other.prompt_length, other.keys_transposed = self.prompt_length, self.keys_transposed
        return other

    def take(self, rows: Sequence[int], other: KvCache, tokens: np.ndarray) -> None:
        """Take these completions over from another cache of the same prompts; `tokens` of each count, by number."""
        together: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            key = self._reach(int(tokens[row])), id(other.pool[row])
            together.setdefault(key, []).append(row)
        for (reach, _), its_rows in together.items():
            source = other.pool[its_rows[0]]
            self._move(its_rows, source, self._pool_for(reach, int(tokens[its_rows].max())))
            for row in its_rows:
                del other.pool[row]
        other.compact()

    def release(self, row: int, prompt: int | None) -> None:
        """Give back the slot of a completion, if it has one, and that of a prompt."""
        if row in self.pool:
            self.pool.pop(row).release(row)
        if prompt is not None:
            pool = self.prompt_pool.pop(prompt)
            del self.prompt_length[prompt]
            pool.release(prompt)
            if not pool.slots:
                del self.prompts[pool.capacity]

    def make_room(self, tokens: np.ndarray) -> bool:
        """Lengthen slots, or move completions that outgrow their pool; returns whether anything changed.

        Args:
            tokens: of each completion when it is written to next, by number.
        """
        changed = False
        # The longest first, so that a pool has gone on before the next one arrives.
        for reach, pool in sorted(self.completions.items(), reverse=True):
            longest = int(tokens[list(pool.slots)].max(initial=0))
            if longest <= pool.capacity:
                continue
            changed = True
            leaving = [row for row in pool.slots if tokens[row] > reach]
            if len(leaving) == len(pool.slots) and 2 * reach not in self.completions:
                del self.completions[reach]
                self.completions = dict(sorted([*self.completions.items(), (2 * reach, pool)]))
            elif leaving:
                self._move(leaving, pool, self._pool_for(2 * reach, longest))
                longest = int(tokens[list(pool.slots)].max(initial=0))
            if longest > pool.capacity:
                pool.grow(aligned(longest))
            if not pool.slots:
                del self.completions[reach]
        self._note_peak()
        return changed

    def compact(self) -> None:
        """Close holes where that makes a step narrower."""
        self.completions = {reach: pool for reach, pool in self.completions.items() if pool.slots}
        for pool in (*self.completions.values(), *self.prompts.values()):
            pool.compact()

    # --- numbers ------------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        return sum(pool.bytes for pool in (*self.prompts.values(), *self.completions.values()))

    def prompt_bytes(self, length: int) -> int:
        """Return the bytes of a prompt that is held once for its completions."""
        return prompt_capacity(length) * self.format.bytes_per_token

    def completion_bytes(self, prompt_length: int, max_new_tokens: int) -> int:
        """Return the bytes that a completion can come to."""
        own = max_new_tokens + (RESERVED if self.shares_prompts else prompt_length)
        return aligned(own) * self.format.bytes_per_token

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _reach(self, length: int) -> int:
        """Return which pool a completion with so many tokens in its slot goes to: FIRST times a power of two."""
        if self.fixed is not None:
            return self.fixed.capacity
        return max(FIRST, 1 << (length - 1).bit_length())  # both are powers of two

    def _pool_for(self, reach: int, longest: int) -> KvPool:
        """Return the pool of completions up to `reach`, with room for `longest` tokens in each slot."""
        if reach not in self.completions:
            pool = self.fixed or KvPool(self.format, aligned(longest), self.keys_transposed)
            self.completions = dict(sorted([*self.completions.items(), (reach, pool)]))
        pool = self.completions[reach]
        if longest > pool.capacity:
            pool.grow(aligned(longest))
        return pool

    def _claim(self, pool: KvPool, owners: Sequence[int]) -> list[int]:
        """Return slots for these; nothing spare is kept where that would be over the budget."""
        more = pool.needed(len(owners)) - len(pool.owners)
        if self.bytes + more * pool.capacity * self.format.bytes_per_token <= self.budget:
            return pool.claim(owners)
        for other in (*self.prompts.values(), *self.completions.values()):
            other.trim()
        return pool.claim(owners, spare=False)

    def _move(self, rows: Sequence[int], source: KvPool, target: KvPool) -> None:
        """Move contents to longer slots."""
        new = torch.tensor(self._claim(target, rows), device=self.format.device)
        old = torch.tensor([source.slots[row] for row in rows], device=self.format.device)
        filled = slice(0, min(source.capacity, target.capacity))
        for layer in range(self.format.layers):
            if target.keys_transposed:
                target.keys[layer][..., filled].index_copy_(0, new, source.keys[layer][old][..., filled])
            else:
                target.keys[layer][:, :, filled].index_copy_(0, new, source.keys[layer][old][:, :, filled])
            target.values[layer][:, :, filled].index_copy_(0, new, source.values[layer][old][:, :, filled])
        self._note_peak()
        for row in rows:
            source.release(row)
            self.pool[row] = target

    def _copy_prompts(self, pool: KvPool, slots: Sequence[int], prompts: Sequence[int]) -> None:
        """Put each prompt in front of its completions."""
        of_prompt: dict[int, list[int]] = {}
        for slot, prompt in zip(slots, prompts, strict=True):
            of_prompt.setdefault(prompt, []).append(slot)
        for prompt, its_slots in of_prompt.items():
            source, length = self.prompt_pool[prompt], self.prompt_length[prompt]
            at = torch.tensor(its_slots, device=self.format.device)
            for layer in range(self.format.layers):
                keys = source.keys[layer][source.slots[prompt], :, :length]  # (heads, length, head_dim)
                if pool.keys_transposed:
                    pool.keys[layer][at, :, :, :length] = keys.transpose(1, 2)
                else:
                    pool.keys[layer][at, :, :length] = keys
                pool.values[layer][at, :, :length] = source.values[layer][source.slots[prompt], :, :length]

    def _note_peak(self) -> None:
        self.peak = max(self.peak, self.bytes)


def aligned(length: int) -> int:
    """Return the next multiple of ALIGNED."""
    return -(-length // ALIGNED) * ALIGNED


def prompt_capacity(length: int) -> int:
    """Return the capacity of the slot that a prompt is in: a power of two, or one and a half."""
    capacity = ALIGNED
    while capacity < length:
        capacity *= 2
    three_quarters = capacity * 3 // 4
    return three_quarters if length <= three_quarters and three_quarters % ALIGNED == 0 else capacity
