"""One optimizer step without a model: each completion has logits of its own, so that its gradient can be read off.

The step goes through everything that the trainer goes through: totals and weights, rows that are left out, choices over
the whole step, terms, objective. Only the forward pass is a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from covey import GRPOConfig
from covey.trainer import parts
from covey.types import Completion, Gather, Prompt
from covey.update.micro_batch import MicroBatch, build_micro_batches
from covey.update.samples import Sample
from covey.update.terms import Loss, loss_terms
from covey.update.updater import needs_every_row
from tests.ranks import on_ranks

VOCABULARY = 5
Cut = Sequence[Sequence[Sequence[int]]]
"""Ranks → micro-batches → numbers of samples."""


@cache
def _config(given: tuple[tuple[str, Any], ...]) -> GRPOConfig:
    return GRPOConfig(output_dir="unused", max_completion_length=8, report_to="none", **dict(given))


def settings(**given: Any) -> GRPOConfig:
    """A configuration with these settings, validated."""
    return _config(tuple(sorted(given.items())))


def drawn(seed: int, length: int, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, VOCABULARY, generator=generator, dtype=torch.float64) * spread


def make_samples(masks_truncated: bool = False) -> list[Sample]:
    """Eight completions of three prompts: of different lengths, one truncated, one answered in between, three of advantage 0."""
    lengths = [1, 3, 4, 2, 5, 2, 3, 4]
    advantages = [1.2, -0.7, 0.0, 0.4, -1.5, 0.9, 0.0, 0.0]
    prompts = [0, 0, 0, 1, 1, 1, 2, 2]
    samples = []
    for i, (n, a, p) in enumerate(zip(lengths, advantages, prompts, strict=True)):
        written = (True, False, True, True, True) if i == 4 else None
        ids = tuple((3 * i + t) % VOCABULARY for t in range(n))
        sampled = _picked(torch.log_softmax(drawn(i, n), -1) + 0.05 * drawn(100 + i, n), ids)
        completion = Completion(ids, tuple(sampled.tolist()), "", "length" if i == 5 else "stop", written)
        samples.append(
            Sample(
                Prompt("p", (1, 2), seed_key=(p, 0)),
                completion,
                a,
                p,
                in_loss=not (masks_truncated and completion.is_truncated),
            )
        )
    return samples


def _picked(logprobs: Tensor, ids: Sequence[int]) -> Tensor:
    return logprobs.gather(-1, torch.tensor(ids, dtype=torch.long)[:, None])[:, 0]


class Table:
    """The forward pass: logits of every completion under each policy, by the number of the sample."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        lengths = [len(s.completion.ids) for s in samples]
        self.old = [drawn(i, n) for i, n in enumerate(lengths)]
        self.reference = [drawn(200 + i, n) for i, n in enumerate(lengths)]
        self.new = [
            (old + 0.4 * drawn(300 + i, n)).requires_grad_()
            for i, (old, n) in enumerate(zip(self.old, lengths, strict=True))
        ]

    def score(self, batch: MicroBatch, logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every token of a micro-batch."""
        logprobs = torch.log_softmax(torch.cat([logits[i] for i in batch.rows]), -1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, batch.targets[:, None])[:, 0], entropy


def step(
    given: GRPOConfig,
    cut: Cut,
    own: Loss | None = None,
    drops_rows: bool = True,
) -> tuple[float, list[float], int]:
    """Loss, gradient by all logits, and rows computed, of one optimizer step that is cut this way."""
    samples = make_samples(given.mask_truncated_completions)
    table = Table(samples)
    results = on_ranks(
        len(cut), lambda rank, gather: _share(given, cut[rank], samples, table, own, drops_rows, gather)
    )
    loss = sum((share for share, _ in results), torch.zeros((), dtype=torch.float64))
    slopes = torch.autograd.grad(loss, table.new, allow_unused=True)
    flat = [
        x
        for slope, logits in zip(slopes, table.new, strict=True)
        for x in (torch.zeros_like(logits) if slope is None else slope).flatten().tolist()
    ]
    return loss.item(), flat, sum(rows for _, rows in results)


def _share(
    given: GRPOConfig,
    cut: Sequence[Sequence[int]],
    samples: Sequence[Sample],
    table: Table,
    own: Loss | None,
    drops_rows: bool,
    gather: Gather,
) -> tuple[Tensor, int]:
    """One rank's share of the loss, and the rows that it computed."""
    objective, selection = parts.make_objective(given, own), parts.make_selection(given, own)
    bonus, reduction = parts.make_entropy_bonus(given), parts.make_reduction(given)
    every_row = needs_every_row(objective, selection, bonus) or not drops_rows
    batches = [_doubled(b) for b in build_micro_batches(samples, cut, len(cut), reduction, gather, every_row)]
    entropies = []
    for batch in batches:
        batch.old_logprobs, entropy = table.score(batch, table.old)
        entropies.append(entropy)
        if objective.beta:
            batch.ref_logprobs = table.score(batch, table.reference)[0]
    if selection.is_needed:
        selection.choose(batches, entropies, gather)
    loss = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        part, _ = objective(loss_terms(batch, *table.score(batch, table.new)), bonus.present)
        loss = loss + part
    return loss, sum(b.num_rows for b in batches)


def _doubled(batch: MicroBatch) -> MicroBatch:
    """In float64: the weights are float32 in a run, and a law should not drown in their rounding."""
    for name in ("advantages", "weights", "sampler_logprobs"):
        setattr(batch, name, getattr(batch, name).double())
    return batch
