"""A step whose gradients are not finite: it is not applied, its completion is named, and too many in a row stop the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn
from transformers.trainer_utils import get_last_checkpoint

from covey.errors import DivergedError, warn
from covey.update.micro_batch import MicroBatch


class NonfiniteGuard:
    """Counts optimizer steps in a row whose gradients were not finite.

    Args:
        limit: so many in a row stop the run.
        output_dir: where checkpoints lie.
        decode: token ids → text.
    """

    def __init__(self, limit: int, output_dir: str, decode: Callable[[list[int]], str | list[str]]) -> None:
        self.limit, self.output_dir, self.decode = limit, output_dir, decode
        self.in_a_row = 0

    def passes(self, norm: float | torch.Tensor) -> bool:
        """Return whether the gradient's norm is finite; a finite one ends the count."""
        is_finite = bool(torch.isfinite(torch.as_tensor(norm)))
        if is_finite:
            self.in_a_row = 0
        return is_finite

    def drop(self, model: nn.Module, step: int, batches: Sequence[MicroBatch]) -> str:
        """Drop the gradients, so that the optimizer leaves the weights alone, and return the event to record.

        Raises:
            DivergedError: it was one too many in a row.
        """
        model.zero_grad()  # DeepSpeed's takes no argument
        self.in_a_row += 1
        event = (
            f"Step {step}: the gradient is not finite; the step is not applied ({self.in_a_row} in a row). "
            f"{self._suspect(batches)}"
        )
        warn(event)
        if self.in_a_row >= self.limit:
            last = get_last_checkpoint(self.output_dir) if Path(self.output_dir).is_dir() else None
            raise DivergedError(
                f"{event} The run stops at max_nonfinite_steps={self.limit}. The weights are those of the last good step; "
                f"the last checkpoint is {last or 'none: nothing was saved yet'}. Lower the learning rate, or look at this completion."
            )
        return event

    def _suspect(self, batches: Sequence[MicroBatch]) -> str:
        """Return a sentence on the first completion with log-probabilities that are not finite, or on the first of all."""
        sentence, found, row = "Its first completion is", batches[0], 0
        for batch in batches:
            bad = (
                batch.row[~torch.isfinite(batch.old_logprobs)]
                if batch.old_logprobs is not None
                else batch.row[:0]
            )
            if len(bad):
                sentence, found, row = "Log-probabilities are not finite for", batch, int(bad[0])
                break
        prompt, completion = (self.decode(list(ids[row])) for ids in (found.prompts, found.completions))
        return f"{sentence} completion {completion[:300]!r} of prompt {prompt[:300]!r}."
