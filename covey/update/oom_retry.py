"""A pass that runs out of memory is repeated in smaller parts, from the start of its optimizer step. The result is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from covey.errors import warn
from covey.update.micro_batch import MicroBatch
from covey.update.token_budget import Budget, free_memory, is_out_of_memory

T = TypeVar("T")


class Repetition:
    """Repeats what ran out of memory, with a budget of half as many tokens each time.

    Args:
        budget: what passes are cut by; it is halved.
        step: the number of the present optimizer step.
        note: told of each repetition, in words.
        rank, ranks: this process, and how many there are.
    """

    def __init__(
        self, budget: Budget, step: Callable[[], int], note: Callable[[str], None], rank: int, ranks: int
    ) -> None:
        self.budget, self.step, self.note = budget, step, note
        self.rank, self.ranks = rank, ranks

    def until_it_fits(self, work: Callable[[], T], batch: MicroBatch) -> T:
        """What `work` gives, which leaves nothing behind when it fails.

        Raises:
            torch.OutOfMemoryError: see `attempt`.
        """
        while True:
            result = self.attempt(work, batch)
            if result is not None:
                return result

    def train(
        self, train: Callable[[MicroBatch], T], batches: Sequence[MicroBatch], start_over: Callable[[], None]
    ) -> T:
        """What `train` gives for the last of `batches`, the micro-batches of an optimizer step up to the present one.

        Args:
            start_over: takes the gradients of the step away, before all of `batches` are trained once more.

        Raises:
            torch.OutOfMemoryError: see `attempt`.
        """
        result = self.attempt(partial(train, batches[-1]), batches[-1])
        while result is None:
            start_over()
            result = self._all(train, batches)
        return result

    def attempt(self, work: Callable[[], T], batch: MicroBatch) -> T | None:
        """What `work` gives; None where it ran out of memory and the budget was halved.

        Raises:
            torch.OutOfMemoryError: a single completion does not fit, or other processes are waiting for this one.
        """
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._halve(batch, error)
        free_memory()  # after the except clause, which holds the frames of the failed pass
        return None

    def _all(self, train: Callable[[MicroBatch], T], batches: Sequence[MicroBatch]) -> T | None:
        """What `train` gives for the last; None where memory ran out once more."""
        result = None
        for batch in batches:
            result = self.attempt(partial(train, batch), batch)
            if result is None:
                return None
        return result

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
