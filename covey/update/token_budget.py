"""How much goes through the model at once: a micro-batch is cut where its tokens exceed a budget, or memory runs out.

Token losses are weighed over the whole optimizer step, so a micro-batch and its parts have the same gradient. Completions
of one prompt stay together as far as the budget allows: apart, each part reads the prompt again.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from covey.update.micro_batch import MicroBatch

ALLOCATOR_SAYS = ("can't allocate memory", "not enough memory", "out of memory")
"""What allocators without an error class of their own say in a RuntimeError."""


class Budget:
    """Tokens that one forward pass may read.

    Args:
        tokens: the limit, prompts counted once per group; None: no limit.
    """

    def __init__(self, tokens: int | None = None) -> None:
        self.tokens = tokens

    def cut(self, batch: MicroBatch) -> list[MicroBatch]:
        """Parts within the budget, in order; a completion that exceeds it has a part of its own."""
        if self.tokens is None or tokens_read(batch, range(batch.num_rows)) <= self.tokens:
            return [batch]
        parts: list[list[int]] = [[]]
        for row in range(batch.num_rows):
            if parts[-1] and tokens_read(batch, [*parts[-1], row]) > self.tokens:
                parts.append([])
            parts[-1].append(row)
        return [batch.select(rows) for rows in parts]

    def halve(self, batch: MicroBatch) -> bool:
        """Allow half of what the largest part of `batch` holds; False where each part is one completion already."""
        parts = [p for p in self.cut(batch) if p.num_rows > 1]
        if not parts:
            return False
        self.tokens = max(tokens_read(p, range(p.num_rows)) for p in parts) // 2
        return True


def tokens_read(batch: MicroBatch, rows: Sequence[int]) -> int:
    """Tokens that a forward pass over these rows reads, with the prompt of a group once."""
    prompts = {(batch.groups[r], batch.prompts[r]) for r in rows}
    return sum(len(p) for _, p in prompts) + sum(len(batch.completions[r]) for r in rows)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator found no memory, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ALLOCATOR_SAYS)


def free_memory() -> None:
    """Hand back what the failed pass left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
