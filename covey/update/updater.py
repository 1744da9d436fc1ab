"""The update of one process: log-probabilities, loss and gradient of the micro-batches of an optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from covey.metrics import Mean, Metric, Total
from covey.types import Gather, KlEstimator
from covey.update.activation_offload import offloaded
from covey.update.entropy import EntropyBonus
from covey.update.forward import Forward
from covey.update.kl import ESTIMATORS, k3
from covey.update.micro_batch import MicroBatch, build_micro_batches, micro_batch
from covey.update.objective import Objective
from covey.update.oom_retry import OomRetry
from covey.update.reduction import Reduction
from covey.update.reference import Reference
from covey.update.samples import Sample
from covey.update.terms import loss_terms
from covey.update.token_selection import TokenSelection

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class KlPenalty:
    """A divergence to the reference that is taken off rewards instead of being added to the loss."""

    beta: float
    estimator: KlEstimator = "k1"


@dataclass(eq=False, kw_only=True)
class Updater:
    """Step 3 of GRPO. It holds no weights: the model that is trained comes with each call."""

    forward: Forward
    """Computes the policy's log-probabilities."""
    objective: Objective
    reduction: Reduction
    selection: TokenSelection
    bonus: EntropyBonus
    reference: Reference | None
    """The policy is compared with it; None where it is not."""
    kl_penalty: KlPenalty | None
    """The divergence that goes into the rewards; None where it goes into the loss, or nowhere."""
    oom_retry: OomRetry
    """Repeats passes that ran out of memory."""
    accelerator: Accelerator
    """Knows the precision to compute in and how processes share gradients."""
    note: Callable[[Mapping[str, Metric]], None]
    """Takes metrics."""
    gather: Gather
    """Returns every process's value, in the order of the processes."""
    aux_coef: float = 0.0
    """Weight of the loss that balances a mixture's experts, the mean over the step's completions."""
    offloads_activations: bool = False
    """Whether saved activations wait in the memory of the host."""

    batches: list[MicroBatch] = field(default_factory=list, init=False)
    """Of the present optimizer step."""
    _trained: int = field(default=0, init=False)
    """Number of them that have been trained on."""
    _parts: list[tuple[Tensor, dict[str, Metric], Tensor]] = field(default_factory=list, init=False)
    """Loss, metrics and log-probabilities of the parts of the present micro-batch."""

    def begin_step(self, batches: list[MicroBatch]) -> None:
        """Begin an optimizer step on these micro-batches. Collective where the entropy bonus adapts."""
        self.bonus.next_step(self.gather)
        self.forward.next_step()
        self.batches, self._trained = batches, 0

    # --- before the policy moves ----------------------------------------------------------------------------------------

    def build_micro_batches(
        self, samples: Sequence[Sample], cut: Sequence[Sequence[int]], accumulation: int
    ) -> list[MicroBatch]:
        """Build this process's micro-batches of a rollout. Collective.

        Args:
            cut: the numbers of each micro-batch's samples.
            accumulation: micro-batches per optimizer step.
        """
        every_row = bool(self.aux_coef) or needs_every_row(self.objective, self.selection, self.bonus)
        return build_micro_batches(samples, cut, accumulation, self.reduction, self.gather, every_row)

    @torch.no_grad()
    def prepare(self, model: nn.Module, batches: list[MicroBatch], accumulation: int) -> None:
        """Complete a rollout's micro-batches with all that has to be known before the policy moves. Collective.

        The policy trains first on what it sampled itself: in the first optimizer step old log-probabilities are its present
        ones, and need no pass of their own, unless tokens are chosen by them.
        """
        entropies = []
        for number, batch in enumerate(batches):
            if number >= accumulation or self.selection.is_needed:
                batch.old_logprobs, entropy = self.logprobs(model, batch)
                entropies.append(entropy)
        if self.reference is not None and self.objective.beta:
            with self.reference.swapped_into(model) as reference:
                for batch in batches:
                    batch.ref_logprobs, _ = self.logprobs(reference, batch)
        if self.selection.is_needed:
            for first in range(0, len(batches), accumulation):
                step = slice(first, first + accumulation)
                self.selection.choose(batches[step], entropies[step], self.gather)

    @torch.no_grad()
    def kl_penalties(
        self, model: nn.Module, samples: Sequence[Sample], size: int, device: torch.device
    ) -> list[float]:
        """Compute the penalty on each completion's reward for its divergence from the reference, `size` at a time: beta × nats."""
        assert self.kl_penalty is not None and self.reference is not None, "made where kl_in_reward is on"
        penalties: list[float] = []
        with self.reference.swapped_into(model) as reference:
            for first in range(0, len(samples), size):
                part = samples[first : first + size]
                batch = micro_batch(part, range(first, first + len(part)), [1.0] * len(part)).to(device)
                batch.ref_logprobs, _ = self.logprobs(reference, batch)
                terms = loss_terms(batch, batch.sampler_logprobs)
                assert terms.ref_logprobs is not None
                divergences = ESTIMATORS[self.kl_penalty.estimator](
                    terms.sampler_logprobs, terms.ref_logprobs
                )
                penalties += [self.kl_penalty.beta * d for d in terms.row_sums(divergences).tolist()]
                self.note({"kl": terms.mean(k3(terms.sampler_logprobs, terms.ref_logprobs))})
        return penalties

    def logprobs(self, model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities and entropies without gradient, each of shape (tokens,); in parts where memory is short."""
        with self.accelerator.autocast(), torch.no_grad():
            parts = self.oom_retry.run(
                lambda whole: [self.forward(model, part) for part in self.oom_retry.budget.cut(whole)],
                [batch],
                start_over=lambda: None,
            )
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])

    # --- the gradient ---------------------------------------------------------------------------------------------------

    def loss(self, model: nn.Module, batch: MicroBatch) -> Tensor:
        """Compute the share of a micro-batch, or of a part of one, in the loss of its optimizer step. Scalar."""
        with offloaded(model) if self.offloads_activations else nullcontext():
            with self.accelerator.autocast():
                logprobs, entropy = self.forward(model, batch)
            loss, metrics = self.objective(loss_terms(batch, logprobs, entropy), self.bonus.present)
        if (aux := self.forward.aux_loss) is not None:
            share = batch.num_rows / (sum(b.num_rows for b in self.batches) * self.oom_retry.ranks)
            loss = loss + self.aux_coef * share * aux
            metrics["aux_loss"] = Mean(float(aux.detach()) * batch.num_rows, batch.num_rows)
        self._parts.append((loss.detach(), metrics, logprobs.detach()))
        return loss

    def train(self, model: nn.Module, step: Callable[[MicroBatch], Tensor]) -> Tensor:
        """Go forward and backward on the step's next micro-batch; where memory runs out, again from the start of the step.

        Args:
            step: forward and backward of a part.
        """
        self._trained += 1
        return self.oom_retry.run(
            partial(self._train_in_parts, model, step),
            self.batches[: self._trained],
            model.zero_grad,
        )

    def _train_in_parts(
        self, model: nn.Module, step: Callable[[MicroBatch], Tensor], batch: MicroBatch
    ) -> Tensor:
        """Train on a micro-batch in as many passes as the budget asks for."""
        self._parts.clear()
        losses, parts = [], self.oom_retry.budget.cut(batch)
        for part in parts:
            is_last = part is parts[-1]
            with nullcontext() if is_last else self.accelerator.no_sync(model), self.forward.layout(part):
                losses.append(step(part))
        # The weights have not moved yet; for passes to come these are the old ones.
        if batch.old_logprobs is None:
            batch.old_logprobs = torch.cat([logprobs for _, _, logprobs in self._parts])
        return torch.stack(losses).sum()

    def note_update(self, batch: MicroBatch) -> None:
        """Note metrics of a micro-batch, once all of its parts have gone through."""
        policy = 0.0
        for _, metrics, _ in self._parts:
            if isinstance(entropy := metrics["entropy"], Mean):
                self.bonus.observe(entropy)
            if isinstance(part := metrics.pop("policy_loss"), Mean):
                policy += part.total
            self.note(metrics)
        if math.isfinite(value := sum(float(loss) for loss, _, _ in self._parts)):
            # Summed over the micro-batches of a step; over steps and processes, which the weight makes up for, the mean.
            ranks, is_first = self.oom_retry.ranks, float(batch is self.batches[0])
            self.note({"loss": Mean(value * ranks, is_first)})
            if self.objective.beta or self.bonus.is_used:
                self.note({"policy_loss": Mean(policy * ranks, is_first)})
        rows = batch.num_dropped + batch.num_rows
        self.note({"update/dropped_share": Mean(batch.num_dropped, rows)})
        self.note({"update/out_of_memory": Total(0)})
        if self.bonus.is_used:
            self.note({"entropy_coef": Mean(self.bonus.present)})


def needs_every_row(objective: Objective, selection: TokenSelection, bonus: EntropyBonus) -> bool:
    """Return whether a completion of advantage 0 changes the step: by a term of its own, or by what is counted over all.

    Losses without an attribute `needs_every_row` are given every row.
    """
    by_loss = bool(getattr(objective.loss, "needs_every_row", True))
    return by_loss or objective.beta > 0 or bonus.is_used or selection.entropy_share < 1
