"""The log-probabilities that micro-batches have to know before the policy moves: old, reference, and what is chosen by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from covey.metrics import Mean
from covey.types import KlEstimator
from covey.update.kl import completion_divergences, k3
from covey.update.micro_batch import MicroBatch, micro_batch
from covey.update.reference import Reference
from covey.update.samples import Sample
from covey.update.terms import loss_terms
from covey.update.token_selection import Selection

Logprobs = Callable[[nn.Module, MicroBatch], tuple[Tensor, Tensor]]
"""A model's log-probabilities and entropies of a micro-batch's tokens."""
AddReference = Callable[[Sequence[MicroBatch]], None]


@torch.no_grad()
def add_old(
    batches: Sequence[MicroBatch],
    accumulation: int,
    selection: Selection,
    logprobs: Callable[[MicroBatch], tuple[Tensor, Tensor]],
) -> list[Tensor]:
    """Add the policy's own log-probabilities, and return entropies, batch by batch, where they were computed.

    The first optimizer step of a window trains the policy that sampled: its old log-probabilities are its own, and are
    kept when they are computed, for the passes to come.

    Args:
        batches: of a window.
        accumulation: micro-batches per optimizer step.
    """
    entropies = []
    for number, batch in enumerate(batches):
        if number >= accumulation or selection.is_needed:
            batch.old, entropy = logprobs(batch)
            entropies.append(entropy)
    return entropies


@torch.no_grad()
def choose(
    batches: Sequence[MicroBatch],
    entropies: Sequence[Tensor],
    accumulation: int,
    selection: Selection,
    gather: Callable[[Any], list[Any]],
) -> None:
    """Choose tokens, over each optimizer step of a window; nothing where none are to be chosen."""
    if not selection.is_needed:
        return
    for first in range(0, len(batches), accumulation):
        step = slice(first, first + accumulation)
        selection.choose(list(batches[step]), list(entropies[step]), gather)


@torch.no_grad()
def add_reference(
    batches: Sequence[MicroBatch], reference: Reference, policy: nn.Module, logprobs: Logprobs
) -> None:
    """Add the log-probabilities under the reference."""
    with reference.lent_to(policy) as lent:
        for batch in batches:
            batch.reference = logprobs(lent, batch)[0]


@torch.no_grad()
def divergences(
    samples: Sequence[Sample],
    size: int,
    estimator: KlEstimator,
    device: torch.device,
    add_reference: AddReference,
) -> Iterator[tuple[list[float], Mean]]:
    """How far each completion went from the reference, in nats, and the mean of k3 over tokens; `size` at a time."""
    for first in range(0, len(samples), size):
        part = samples[first : first + size]
        batch = micro_batch(part, range(first, first + len(part)), [1.0] * len(part)).to(device)
        add_reference([batch])
        terms = loss_terms(batch, batch.sampled)
        assert terms.reference is not None
        found = completion_divergences(estimator, terms.sampled, terms.reference, terms.row, terms.num_rows)
        yield list(found), terms.mean(k3(terms.sampled, terms.reference))
