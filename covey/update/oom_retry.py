"""Limits the tokens of a pass through the model, and repeats passes that run out of memory.

A micro-batch is cut where its tokens exceed a budget. A pass that runs out of memory halves the budget and is repeated in
smaller parts, from the start of its optimizer step. Token losses are weighed over the whole optimizer step, so a
micro-batch and its parts have the same gradient. Completions of one prompt stay together as far as the budget allows:
apart, each part reads the prompt again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from covey.errors import warn
from covey.update.micro_batch import MicroBatch

T = TypeVar("T")

ALLOCATOR_MESSAGES = ("can't allocate memory", "not enough memory", "out of memory")
"""Words in the RuntimeError of allocators that have no error class of their own."""


@dataclass
class TokenBudget:
    """Tokens that one forward pass may read."""

    tokens: int | None = None
    """The limit, prompts counted once per group; None: no limit."""

    def cut(self, batch: MicroBatch) -> list[MicroBatch]:
        """Return parts within the budget, in order; a completion that exceeds it has a part of its own."""
        if self.tokens is None or tokens_read(batch, range(batch.num_rows)) <= self.tokens:
            return [batch]
        parts: list[list[int]] = [[]]
        for row in range(batch.num_rows):
            if parts[-1] and tokens_read(batch, [*parts[-1], row]) > self.tokens:
                parts.append([])
            parts[-1].append(row)
        return [batch.select(rows) for rows in parts]

    def halve(self, batch: MicroBatch) -> bool:
        """Allow half the tokens of the largest part of `batch`.

        Returns:
            False where each part is one completion already, and nothing was halved.
        """
        parts = [p for p in self.cut(batch) if p.num_rows > 1]
        if not parts:
            return False
        self.tokens = max(tokens_read(p, range(p.num_rows)) for p in parts) // 2
        return True


def tokens_read(batch: MicroBatch, rows: Sequence[int]) -> int:
    """Count the tokens that a forward pass over these rows reads, with the prompt of a group once."""
    prompts = {(batch.groups[r], batch.prompts[r]) for r in rows}
    return sum(len(p) for _, p in prompts) + sum(len(batch.completions[r]) for r in rows)


@dataclass(eq=False)
class OomRetry:
    """Repeats a pass that ran out of memory, with a budget of half as many tokens each time."""

    budget: TokenBudget
    """Limits each pass; it is halved."""
    step: Callable[[], int]
    """Returns the number of the present optimizer step."""
    note: Callable[[str], None]
    """Called with each repetition, in words."""
    rank: int
    """Number of this process."""
    ranks: int
    """Number of processes."""

    def run(
        self, work: Callable[[MicroBatch], T], batches: Sequence[MicroBatch], start_over: Callable[[], object]
    ) -> T:
        """Return the result of `work` for the last of `batches`; where memory runs out, all of them go through it again.

        Args:
            batches: the micro-batches of an optimizer step up to the present one, or one alone.
            start_over: takes away what earlier calls of `work` left behind, such as gradients.

        Raises:
            torch.OutOfMemoryError: see `attempt`.
        """
        result = self.attempt(work, batches[-1])
        while result is None:
            start_over()
            for batch in batches:
                result = self.attempt(work, batch)
                if result is None:
                    break
        return result

    def attempt(self, work: Callable[[MicroBatch], T], batch: MicroBatch) -> T | None:
        """Return the result of `work`; None where it ran out of memory and the budget was halved.

        Raises:
            torch.OutOfMemoryError: a single completion does not fit, or other processes are waiting for this one.
        """
        try:
            return work(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._halve(batch, error)
        # After the except clause, which holds the frames of the failed pass.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None

    def _halve(self, batch: MicroBatch, error: BaseException) -> None:
        where = f"Step {self.step()} ran out of memory with {batch.num_rows} completion(s)"
        if self.ranks > 1:
            raise torch.OutOfMemoryError(
                f"{where} on process {self.rank}. Other processes are waiting in the middle of the step, so it cannot be "
                "repeated. Lower per_device_train_batch_size or max_tokens_per_forward, and resume from the last "
                f"checkpoint. The allocator said: {error}"
            ) from error
        if not self.budget.halve(batch):
            raise torch.OutOfMemoryError(
                f"{where}, and each is computed alone already. Turn on gradient_checkpointing or activation_offloading, lower "
                f"max_completion_length, or train an adapter. The allocator said: {error}"
            ) from error
        event = (
            f"{where}: it is repeated with at most {self.budget.tokens} tokens per forward pass, from now on. The result is "
            f"the same. Set max_tokens_per_forward={self.budget.tokens} to start with that."
        )
        warn(event)
        self.note(event)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocator found no memory, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ALLOCATOR_MESSAGES)
