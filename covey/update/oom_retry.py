"""Limits the tokens of a pass through the model, and repeats passes that run out of memory.

A micro-batch is cut where its tokens exceed a budget. A pass that runs out of memory halves the budget and is repeated in
smaller parts, from the start of its optimizer step. Token losses are weighed over the whole optimizer step, so a
micro-batch and its parts have the same gradient. Completions of one prompt stay together as far as the budget allows:
apart, each part reads the prompt again.

Of several processes, each cuts its own micro-batches. With whole weights (DDP) gradients travel in the last backward pass
of an optimizer step alone: a process that runs out of memory before repeats its passes by itself, and the others wait for
it there. With sharded weights all processes meet in every layer of every pass. So they make equally many (`joint`); one
that runs out of memory leaves the others in the middle of a layer, from where nobody can go back.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from covey.errors import warn
from covey.models.allocators import is_out_of_memory
from covey.update.micro_batch import MicroBatch

T = TypeVar("T")

SMALLER = ", make pictures smaller (max_pixels; covey plan says what it saves), leave the tower as it is (freeze_vision_tower)"


@dataclass
class TokenBudget:
    """Tokens that one forward pass may read."""

    tokens: int | None = None
    """The limit, prompts counted once per group; None: no limit."""

    def rows(self, batch: MicroBatch) -> list[list[int]]:
        """Return the rows of parts within the budget, in order; a completion that exceeds it has a part of its own."""
        if self.tokens is None or tokens_read(batch, range(batch.num_rows)) <= self.tokens:
            return [list(range(batch.num_rows))]
        parts: list[list[int]] = [[]]
        for row in range(batch.num_rows):
            if parts[-1] and tokens_read(batch, [*parts[-1], row]) > self.tokens:
                parts.append([])
            parts[-1].append(row)
        return parts

    def cut(self, batch: MicroBatch) -> list[MicroBatch]:
        """Return the parts themselves."""
        parts = self.rows(batch)
        return [batch] if len(parts) == 1 else [batch.select(rows) for rows in parts]

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
    keys = batch.keys
    prompts = sum(len(ids) for _, (ids, _) in {keys[r] for r in rows})
    return prompts + sum(len(batch.completions[r]) for r in rows)


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
    joint: bool = False
    """Whether processes take every pass together, because each holds a shard of the weights or gradients."""
    placeholders: Collection[int] = ()
    """Ids that stand for parts of pictures."""
    is_shared: bool = field(default=False, init=False)
    """Whether gradients are on their way to other processes in the present pass."""

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
            torch.OutOfMemoryError: a single completion does not fit, or other processes wait in the middle of this pass.
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
        shown, read = tokens_shown(batch, self.placeholders), tokens_read(batch, range(batch.num_rows))
        where = f"Step {self.step()} ran out of memory with {batch.num_rows} completion(s)"
        where += f" ({shown} of {read} tokens are of pictures)" if shown else ""
        if not self.budget.halve(batch):
            raise torch.OutOfMemoryError(
                f"{where}, and each is computed alone already. Turn on gradient_checkpointing or activation_offloading, lower "
                f"max_completion_length{SMALLER * bool(shown)}, or train an adapter. The allocator said: {error}"
            ) from error
        if self.joint or self.is_shared:
            raise torch.OutOfMemoryError(
                f"{where} on process {self.rank}. Other processes wait for it in the middle of this pass, so it cannot be "
                f"repeated. Resume from the last checkpoint with max_tokens_per_forward={self.budget.tokens}, which "
                f"changes no result, or less. The allocator said: {error}"
            ) from error
        event = (
            f"{where}: it is repeated with at most {self.budget.tokens} tokens per forward pass, from now on. The result is "
            f"the same. Set max_tokens_per_forward={self.budget.tokens} to start with that."
        )
        warn(event)
        self.note(event)


def tokens_shown(batch: MicroBatch, placeholders: Collection[int]) -> int:
    """Count the tokens of pictures that a forward pass over a batch reads, with the prompt of a group once."""
    return sum(i in placeholders for ids, _ in {key for _, key in batch.keys} for i in ids)
