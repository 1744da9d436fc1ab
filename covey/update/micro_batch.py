"""Samples → micro-batches: what one forward pass sees, weighed over the whole optimizer step.

Tokens of completions lie flat, row after row, without padding: every per-token tensor of a micro-batch has the shape
(tokens,), and `row` says which completion a token belongs to.

Completions that cannot change an optimizer step are left out. A completion of advantage 0 has no gradient where nothing
but the advantage moves its tokens: no divergence to the reference in the loss, no entropy bonus, no loss that looks at its
numbers for the sake of others. One that is masked has none at all. The weights are worked out before, from all
completions, so the step is the same. Metrics of the update (`entropy`, `clip_ratio/...`, `ratio/mean`) are over the
completions that are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from covey.types import Picture, PromptKey
from covey.update.reduction import Reduction, Totals, row_weights
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
    """Group of each row; rows of one group share a prompt."""
    advantages: Tensor
    """One per row, shape (rows,)."""
    weights: Tensor
    """Weight of a row's tokens in the loss of the optimizer step, shape (rows,); see `covey.update.reduction`."""
    mask: Tensor
    """Tokens that enter the loss, shape (tokens,), bool."""
    sampler_logprobs: Tensor
    """Log-probabilities as the sampler reported them, shape (tokens,)."""
    token_advantages: Tensor | None = None
    """One advantage per token where turns have their own, shape (tokens,); None: `advantages` of its row."""
    old_logprobs: Tensor | None = None
    """Log-probabilities under the weights at the beginning of the rollout, shape (tokens,).

    None: under the present weights. In the first optimizer step of a rollout the policy has not moved, so the first forward
    pass of training gives them (`covey.update.updater.Updater.train` keeps it), and no pass is spent on them before.
    """
    ref_logprobs: Tensor | None = None
    """Log-probabilities under the reference, shape (tokens,); None: not needed."""
    is_forking: Tensor | None = None
    """Tokens among those of highest entropy, shape (tokens,), bool; None: not asked for. See `covey.update.token_selection`."""
    is_covariant: Tensor | None = None
    """Tokens among those of highest covariance, shape (tokens,), bool; None: not asked for."""
    is_near: Tensor | None = None
    """Tokens that the sampler drew nearly as the trainer would, shape (tokens,), bool; None: not asked for."""
    rows: tuple[int, ...] = ()
    """Number of each row within the rollout, to name it in a report."""
    pictures: list[tuple[Picture, ...]] = field(default_factory=list)
    """Those of each row's prompt, in the order of their tokens; empty where no row has any."""
    num_dropped: int = 0
    """Rows that were left out because they cannot change the step."""
    passes: int = 1
    """Forward and backward passes that every process makes for it, where passes are taken together."""
    is_idle: bool = False
    """Whether it is a pass for the sake of other processes, of which nothing is kept."""

    @classmethod
    def idle(cls, device: torch.device | str) -> MicroBatch:
        """Return the smallest batch that takes a model through a whole pass: two tokens, none of which enters the loss."""
        one, none = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.bool, device=device)
        return cls([(0,)], [(0,)], [0], one, one, none, one, is_idle=True)

    @property
    def num_rows(self) -> int:
        return len(self.completions)

    @property
    def keys(self) -> list[tuple[int, PromptKey]]:
        """Return what rows have in common that are read behind one copy of their prompt: the group, and the prompt's key."""
        digests = [tuple(p.digest for p in shown) for shown in self.pictures] or [()] * self.num_rows
        return list(zip(self.groups, zip(self.prompts, digests, strict=True), strict=True))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion."""
        return [len(c) for c in self.completions]

    @property
    def row(self) -> Tensor:
        """The row of each token, shape (tokens,)."""
        lengths = torch.tensor(self.lengths, device=self.mask.device)
        return torch.repeat_interleave(torch.arange(self.num_rows, device=self.mask.device), lengths)

    @property
    def advantage_of_token(self) -> Tensor:
        """The advantage of each token, shape (tokens,)."""
        return self.advantages[self.row] if self.token_advantages is None else self.token_advantages

    @property
    def targets(self) -> Tensor:
        """The token ids, shape (tokens,)."""
        return torch.tensor([i for c in self.completions for i in c], device=self.mask.device)

    @property
    def num_tokens(self) -> int:
        """Tokens that the forward pass reads, prompts counted once per row."""
        return sum(map(len, self.prompts)) + sum(self.lengths)

    def select(self, rows: Sequence[int]) -> MicroBatch:
        """Return the batch of these rows alone, in the given order."""
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
        """Return the same rows, none longer than `tokens` (at least 2): ends of prompts, beginnings of completions.

        A prompt of pictures stays whole, and has to be shorter than that: each of its pictures needs all of its tokens.
        """
        shown = self.pictures or [()] * self.num_rows
        ends = [p if s else p[-(tokens // 2) :] for p, s in zip(self.prompts, shown, strict=True)]
        beginnings = [c[: tokens - len(p)] for p, c in zip(ends, self.completions, strict=True)]
        place = torch.cat([torch.arange(n) for n in self.lengths]).to(self.mask.device)
        kept = place < torch.tensor([len(c) for c in beginnings], device=place.device)[self.row]
        values: dict[str, Any] = {"prompts": ends, "completions": beginnings}
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and name not in PER_ROW:
                values[name] = value[kept]
        return replace(self, **values)

    def to(self, device: torch.device | str) -> MicroBatch:
        """Return the same batch with its tensors on another device."""
        moved: dict[str, Any] = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def micro_batch(samples: Sequence[Sample], rows: Sequence[int], weights: Sequence[float]) -> MicroBatch:
    """Build one micro-batch of samples, given the number of each in the rollout, and the weight of its tokens in the loss."""
    mask = [kept and s.in_loss for s in samples for kept in s.completion.loss_mask]
    logprobs = [p for s in samples for p in s.completion.plain_logprobs]
    return MicroBatch(
        prompts=[s.prompt.ids for s in samples],
        completions=[s.completion.ids for s in samples],
        groups=[s.group for s in samples],
        advantages=torch.tensor([s.advantage for s in samples], dtype=torch.float32),
        weights=torch.tensor(list(weights), dtype=torch.float32),
        mask=torch.tensor(mask, dtype=torch.bool),
        sampler_logprobs=torch.tensor(logprobs, dtype=torch.float32),
        token_advantages=torch.tensor([a for s in samples for a in s.token_advantages], dtype=torch.float32)
        if any(s.turn_advantages is not None for s in samples)
        else None,
        rows=tuple(rows),
        pictures=[s.prompt.pictures for s in samples] if any(s.prompt.pictures for s in samples) else [],
    )


def build_micro_batches(
    samples: Sequence[Sample],
    cut: Sequence[Sequence[int]],
    accumulation: int,
    reduction: Reduction,
    gather: Callable[[Totals], list[Totals]],
    every_row_is_needed: bool = True,
    adjust: Callable[[list[list[float]]], Sequence[Sample]] | None = None,
) -> list[MicroBatch]:
    """Build the micro-batches of a rollout, with the weights of their rows. Collective.

    Args:
        samples: of the whole rollout.
        cut: the numbers of each micro-batch's samples, for the micro-batches of this process, in order.
        accumulation: micro-batches per optimizer step.
        reduction: how token losses are summed.
        gather: every process's value; called once per optimizer step.
        every_row_is_needed: False leaves out the rows that cannot change the step.
        adjust: returns the samples with the advantages that are trained on, given the weights of the tokens of each micro-batch's
            completions; None: they stay as they are.
    """
    weights = token_weights(samples, cut, accumulation, reduction, gather)
    samples = samples if adjust is None else adjust(weights)
    batches = []
    for numbers, of_rows in zip(cut, weights, strict=True):
        part = [samples[i] for i in numbers]
        kept = contributing_rows(part, of_rows, every_row_is_needed)
        batch = micro_batch([part[k] for k in kept], [numbers[k] for k in kept], [of_rows[k] for k in kept])
        batch.num_dropped = len(part) - len(kept)
        batches.append(batch)
    return batches


def token_weights(
    samples: Sequence[Sample],
    cut: Sequence[Sequence[int]],
    accumulation: int,
    reduction: Reduction,
    gather: Callable[[Totals], list[Totals]],
) -> list[list[float]]:
    """Return what a token of each completion of each micro-batch weighs in the loss of its optimizer step. Collective."""
    weights: list[list[float]] = []
    for first in range(0, len(cut), accumulation):
        step = [[samples[i] for i in numbers] for numbers in cut[first : first + accumulation]]
        counts = [
            (
                [sum(s.completion.loss_mask) for s in part],
                [s.in_loss for s in part],
                [s.prompt.seed_key for s in part],
            )
            for part in step
        ]
        draws = [([s.prompt.weight for s in part], [s.share for s in part]) for part in step]
        each = list(zip(counts, draws, strict=True))
        own = sum((Totals.of(*count, reduction.truncated, *draw) for count, draw in each), Totals())
        totals = sum(gather(own), Totals())
        weights += [row_weights(reduction, *count, totals, *draw) for count, draw in each]
    return weights


def contributing_rows(
    samples: Sequence[Sample], weights: Sequence[float], every_row_is_needed: bool
) -> list[int]:
    """Return the positions of the completions of a micro-batch that have to be computed; at least one.

    A micro-batch in which nothing has to be computed keeps its shortest completion: under DDP and FSDP every process takes
    part in every forward and backward pass.

    Args:
        weights: weight of a token of each completion; 0 where none enters the loss.
        every_row_is_needed: whether a completion of advantage 0 has a loss too.
    """
    has_loss = [w and (every_row_is_needed or s.has_advantage) for s, w in zip(samples, weights, strict=True)]
    kept = [number for number, has in enumerate(has_loss) if has]
    if kept or not samples:
        return kept
    lengths = [len(s.prompt.ids) + len(s.completion.ids) for s in samples]
    return [lengths.index(min(lengths))]
