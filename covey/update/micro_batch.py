"""Scored groups → micro-batches: what one forward pass sees.

Tokens of completions lie flat, row after row, without padding: every per-token tensor of a micro-batch has the shape
(tokens,), and `row` says which completion a token belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covey.update.samples import Sample

PER_ROW = ("advantages", "weights")
"""Tensors of a micro-batch that have one number per row; the others have one per token."""


@dataclass
class MicroBatch:
    """Completions that go through one forward pass together."""

    prompts: list[tuple[int, ...]]
    """Token ids of each row's prompt."""
    completions: list[tuple[int, ...]]
    """Token ids of each row's completion."""
    groups: list[int]
    """Which rows share a prompt."""
    advantages: Tensor
    """One per row, shape (rows,)."""
    weights: Tensor
    """What a token of each row weighs in the loss of the optimizer step, shape (rows,); see `covey.update.reduction`."""
    mask: Tensor
    """Tokens that enter the loss, shape (tokens,), bool."""
    sampled: Tensor
    """Log-probabilities under the policy as the sampler saw it, shape (tokens,)."""
    old: Tensor | None = None
    """Log-probabilities under the weights that the window began with, shape (tokens,); None: the present weights."""
    reference: Tensor | None = None
    """Log-probabilities under the reference, shape (tokens,); None: not needed."""
    is_forking: Tensor | None = None
    """Tokens among those of highest entropy, shape (tokens,), bool; None: not asked for. See `covey.update.token_selection`."""
    is_covariant: Tensor | None = None
    """Tokens among those of highest covariance, shape (tokens,), bool; None: not asked for."""
    rows: tuple[int, ...] = ()
    """Number of each row within the window, to name it in a report."""
    num_dropped: int = 0
    """Rows that were left out because they cannot change the step, see `covey.update.dropping`."""

    @property
    def num_rows(self) -> int:
        return len(self.completions)

    @property
    def lengths(self) -> list[int]:
        return [len(c) for c in self.completions]

    @property
    def row(self) -> Tensor:
        """The row of each token, shape (tokens,)."""
        lengths = torch.tensor(self.lengths, device=self.mask.device)
        return torch.repeat_interleave(torch.arange(self.num_rows, device=self.mask.device), lengths)

    @property
    def targets(self) -> Tensor:
        """The token ids, shape (tokens,)."""
        return torch.tensor([i for c in self.completions for i in c], device=self.mask.device)

    @property
    def num_tokens(self) -> int:
        """Tokens that the forward pass reads, prompts counted once per row."""
        return sum(map(len, self.prompts)) + sum(self.lengths)

    def select(self, rows: Sequence[int]) -> MicroBatch:
        """The batch of these rows alone, in the given order."""
        of_token = torch.cat([torch.nonzero(self.row == r)[:, 0] for r in rows])
        of_row = torch.tensor(list(rows), device=self.mask.device)
        values: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                values[name] = value[of_row if name in PER_ROW else of_token]
            elif isinstance(value, list | tuple) and value:
                values[name] = type(value)(value[r] for r in rows)
        return replace(self, **values, num_dropped=0)

    def shortened(self, tokens: int) -> MicroBatch:
        """The same rows, none longer than `tokens` (at least 2): the ends of prompts, the beginnings of completions."""
        ends = [p[-(tokens // 2) :] for p in self.prompts]
        beginnings = [c[: tokens - len(p)] for p, c in zip(ends, self.completions, strict=True)]
        place = torch.cat([torch.arange(n) for n in self.lengths]).to(self.mask.device)
        kept = place < torch.tensor([len(c) for c in beginnings], device=place.device)[self.row]
        values: dict[str, Any] = {"prompts": ends, "completions": beginnings}
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and name not in PER_ROW:
                values[name] = value[kept]
        return replace(self, **values)

    def to(self, device: torch.device | str) -> MicroBatch:
        """The same batch with its tensors on another device."""
        moved: dict[str, Any] = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def micro_batch(samples: Sequence[Sample], rows: Sequence[int], weights: Sequence[float]) -> MicroBatch:
    """One micro-batch of the given samples.

    Args:
        rows: number of each sample within the window.
        weights: what a token of each sample weighs in the loss.
    """
    mask = [kept and s.in_loss for s in samples for kept in s.completion.loss_mask]
    return MicroBatch(
        prompts=[s.prompt.ids for s in samples],
        completions=[s.completion.ids for s in samples],
        groups=[s.group for s in samples],
        advantages=torch.tensor([s.advantage for s in samples], dtype=torch.float32),
        weights=torch.tensor(list(weights), dtype=torch.float32),
        mask=torch.tensor(mask, dtype=torch.bool),
        sampled=torch.tensor([p for s in samples for p in s.completion.plain_logprobs], dtype=torch.float32),
        rows=tuple(rows),
    )
