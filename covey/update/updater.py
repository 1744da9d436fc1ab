"""The update of one process: log-probabilities, loss and gradient of the micro-batches of an optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from covey.errors import warn
from covey.metrics import Mean, Metric, Total
from covey.models.allocators import is_out_of_memory
from covey.types import Completion, Gather, Group, KlEstimator
from covey.update.activation_offload import offloaded
from covey.update.entropy import EntropyBonus
from covey.update.forward import Forward
from covey.update.kl import ESTIMATORS, k3
from covey.update.micro_batch import MicroBatch, build_micro_batches, micro_batch
from covey.update.objective import Objective
from covey.update.oom_retry import OomRetry
from covey.update.picture_effect import picture_effect
from covey.update.reduction import Reduction
from covey.update.reference import Reference
from covey.update.samples import Sample
from covey.update.task_weights import Tasks, equal_factors, joined_says, say_metrics
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
    tasks: Tasks = field(default_factory=Tasks)
    """How much tasks have to say in the gradient."""

    batches: list[MicroBatch] = field(default_factory=list, init=False)
    """Of the present optimizer step."""
    _trained: int = field(default=0, init=False)
    """Number of them that have been trained on."""
    _parts: list[tuple[Tensor, dict[str, Metric], Tensor]] = field(default_factory=list, init=False)
    """Loss, metrics and log-probabilities of the parts of the present micro-batch."""

    def begin_step(self, batches: list[MicroBatch]) -> None:
        """Begin an optimizer step on these micro-batches. Collective where the entropy bonus adapts or passes are joint."""
        self.bonus.next_step(self.gather)
        self.forward.next_step()
        self.batches, self._trained = batches, 0
        for batch, passes in zip(batches, self._most([self._passes(b) for b in batches]), strict=True):
            batch.passes = passes

    def _passes(self, batch: MicroBatch) -> int:
        """Return how many passes this process would make for a micro-batch by itself."""
        return len(self.oom_retry.budget.rows(batch))

    def _most(self, numbers: list[int]) -> list[int]:
        """Return the largest number of any process at each place, where passes are joint; the own ones elsewhere."""
        if not self.oom_retry.joint:
            return numbers
        return [max(of_ranks) for of_ranks in zip(*self.gather(numbers), strict=True)]

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
        given = self.reduction, self.gather, every_row, partial(self._as_tasks_weigh, samples, cut)
        return build_micro_batches(samples, cut, accumulation, *given)

    def _as_tasks_weigh(
        self, samples: Sequence[Sample], cut: Sequence[Sequence[int]], weights: list[list[float]]
    ) -> Sequence[Sample]:
        """Return samples with the advantages that give tasks their say in the gradient, and note what it is. Collective."""
        own, tasks = self.tasks.says(samples, cut, weights), self.tasks
        factors = equal_factors(joined_says(self.gather(own))) if tasks.are_equal else None
        self.note(say_metrics(own, tasks.names, factors))
        return samples if factors is None else tasks.weighed(samples, factors)

    @torch.no_grad()
    def prepare(self, model: nn.Module, batches: list[MicroBatch], accumulation: int) -> None:
        """Complete a rollout's micro-batches with all that has to be known before the policy moves. Collective.

        Old log-probabilities are those of the policy as it is now, whichever weights sampled: what those differ is the correction's.
        So in the first optimizer step they are the present ones, and need no pass of their own, unless tokens are chosen by them.
        """
        self.forward.begin_window(batches)
        moved = batches if self.selection.is_needed else batches[accumulation:]
        known = self.logprobs(model, moved) if moved else []
        for batch, (logprobs, _) in zip(moved, known, strict=True):
            batch.old_logprobs = logprobs
        if self.reference is not None and self.objective.beta:
            with self.reference.swapped_into(model) as reference:
                for batch, (logprobs, _) in zip(batches, self.logprobs(reference, batches), strict=True):
                    batch.ref_logprobs = logprobs
        if self.selection.is_needed:
            for first in range(0, len(batches), accumulation):
                step = slice(first, first + accumulation)
                self.selection.choose(batches[step], [entropy for _, entropy in known[step]], self.gather)

    def note_picture_effect(self, samples: Sequence[Sample], most: int) -> None:
        """Note how much pictures matter to the policy, as it is now, for `most` of these completions at most.

        All logits of a pass are made, which an update with packed rows never does: where memory runs out the run goes on without
        this number.
        """
        try:
            with self.accelerator.autocast():
                effect = picture_effect(self.forward, samples, most, self.accelerator.device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return warn(
                "There is no memory to measure how much pictures matter: vision/effect is not logged."
            )
        if effect is not None:
            self.note({"vision/effect": effect})

    @torch.no_grad()
    def kl_penalties(
        self, model: nn.Module, samples: Sequence[Sample], size: int, device: torch.device
    ) -> list[float]:
        """Compute the penalty on each completion's reward for its divergence from the reference, `size` at a time: beta × nats."""
        assert self.kl_penalty is not None and self.reference is not None, "made where kl_in_reward is on"
        penalties: list[float] = []
        batches = _unweighted(samples, size, device)
        with self.reference.swapped_into(model) as reference:
            known = self.logprobs(reference, batches)
        for batch, (logprobs, _) in zip(batches, known, strict=True):
            batch.ref_logprobs = logprobs
            terms = loss_terms(batch, batch.sampler_logprobs)
            assert terms.ref_logprobs is not None
            divergences = ESTIMATORS[self.kl_penalty.estimator](terms.sampler_logprobs, terms.ref_logprobs)
            penalties += [self.kl_penalty.beta * d for d in terms.row_sums(divergences).tolist()]
            self.note({"kl": terms.mean(k3(terms.sampler_logprobs, terms.ref_logprobs))})
        return penalties

    @torch.no_grad()
    def with_logprobs(
        self, model: nn.Module, groups: Sequence[Group], size: int, device: torch.device
    ) -> list[Group]:
        """Return groups that came without log-probabilities with those of the present policy, `size` completions at a time."""
        samples = [Sample(g.prompt, c, 0.0, n) for n, g in enumerate(groups) for c in g.completions]
        batches = _unweighted(samples, size, device)
        values = [
            of_row
            for batch, (logprobs, _) in zip(batches, self.logprobs(model, batches), strict=True)
            for of_row in (logprobs * batch.mask).cpu().split(batch.lengths)
        ]
        known: list[Completion] = [
            replace(s.completion, logprobs=tuple(of_row.tolist()))
            for s, of_row in zip(samples, values, strict=True)
        ]
        left = iter(known)
        return [replace(g, completions=tuple(next(left) for _ in g.completions)) for g in groups]

    def sequence_gaps(
        self, model: nn.Module, groups: Sequence[Group], size: int, device: torch.device
    ) -> list[list[float]]:
        """Compute how much likelier each completion is under the present policy than it was to its sampler: Σ_t (o - b), in nats.

        `size` completions at a time. Collective where passes are joint.
        """
        samples = [Sample(g.prompt, c, 0.0, n) for n, g in enumerate(groups) for c in g.completions]
        batches = _unweighted(samples, size, device)
        gaps: list[float] = []
        for batch, (logprobs, _) in zip(batches, self.logprobs(model, batches), strict=True):
            terms = loss_terms(batch, logprobs)
            gaps += terms.row_sums((terms.old_logprobs - terms.sampler_logprobs).double()).tolist()
        left = iter(gaps)
        return [[next(left) for _ in g.completions] for g in groups]

    def logprobs(self, model: nn.Module, batches: Sequence[MicroBatch]) -> list[tuple[Tensor, Tensor]]:
        """Return log-probabilities and entropies, shape (tokens,), of micro-batches, without gradient; in parts where memory is short.

        Collective where passes are joint; processes may have different numbers of micro-batches.
        """
        [most] = self._most([sum(map(self._passes, batches))])
        results = []
        with self.accelerator.autocast(), torch.no_grad():
            for batch in batches:
                parts = self.oom_retry.run(
                    lambda whole: [self.forward(model, part) for part in self.oom_retry.budget.cut(whole)],
                    [batch],
                    start_over=lambda: None,
                )
                most -= len(parts)
                logprobs, entropies = zip(*parts, strict=True)
                results.append((torch.cat(logprobs), torch.cat(entropies)))
            for _ in range(most):
                self.forward(model, MicroBatch.idle(self.accelerator.device))
        return results

    # --- the gradient ---------------------------------------------------------------------------------------------------

    def loss(self, model: nn.Module, batch: MicroBatch) -> Tensor:
        """Compute the share of a micro-batch, or of a part of one, in the loss of its optimizer step. Scalar."""
        with offloaded(model) if self.offloads_activations else nullcontext():
            with self.accelerator.autocast():
                logprobs, entropy = self.forward(model, batch)
            if batch.is_idle:
                nothing = torch.where(batch.mask, logprobs, 0.0).sum()
                return nothing if self.forward.aux_loss is None else nothing + 0.0 * self.forward.aux_loss
            loss, metrics = self.objective(loss_terms(batch, logprobs, entropy), self.bonus.present)
        # From here on it is the backward pass's turn, in which gradients may travel.
        self.oom_retry.is_shared = bool(getattr(model, "require_backward_grad_sync", False))
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

        def start_over() -> None:
            model.zero_grad()
            if isinstance(model, DistributedDataParallel):  # it has sent its buffers in this step already
                model.require_forward_param_sync = False

        return self.oom_retry.run(
            partial(self._train_in_parts, model, step), self.batches[: self._trained], start_over
        )

    def _train_in_parts(
        self, model: nn.Module, step: Callable[[MicroBatch], Tensor], batch: MicroBatch
    ) -> Tensor:
        """Train on a micro-batch in as many passes as the budget asks for; where passes are joint, as any process's budget does."""
        self._parts.clear()
        losses, parts = [], self.oom_retry.budget.cut(batch)
        idle = MicroBatch.idle(batch.mask.device)
        parts = [idle] * (batch.passes - len(parts) if self.oom_retry.joint else 0) + parts
        for number, part in enumerate(parts, 1):
            # An earlier micro-batch comes again where memory ran out: its gradient travels with the present one's.
            is_last = number == len(parts) and batch is self.batches[self._trained - 1]
            self.oom_retry.is_shared = False
            with nullcontext() if is_last else self._kept_back(model), self.forward.layout(part):
                loss = step(part)
            self.oom_retry.is_shared = False
            if not part.is_idle:
                losses.append(loss)
        # The weights have not moved yet; for passes to come these are the old ones.
        if batch.old_logprobs is None:
            batch.old_logprobs = torch.cat([logprobs for _, _, logprobs in self._parts])
        return torch.stack(losses).sum()

    @contextmanager
    def _kept_back(self, model: nn.Module) -> Iterator[None]:
        """Keep the gradients of a pass in this process, for the last pass of the micro-batch to take along.

        FSDP shares them in each pass: kept back, they would be those of all weights, which no process may have memory for.
        """
        kind = self.accelerator.distributed_type.value
        if kind == "DEEPSPEED":  # its engine takes an optimizer step after a pass unless it is told
            before, self.accelerator.sync_gradients = self.accelerator.sync_gradients, False
            try:
                yield
            finally:
                self.accelerator.sync_gradients = before
        else:
            with nullcontext() if kind == "FSDP" else self.accelerator.no_sync(model):
                yield

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


def _unweighted(samples: Sequence[Sample], size: int, device: torch.device) -> list[MicroBatch]:
    """Return micro-batches of `size` completions, in order, whose tokens all weigh 1."""
    parts = [range(first, min(first + size, len(samples))) for first in range(0, len(samples), size)]
    return [micro_batch([samples[i] for i in part], part, [1.0] * len(part)).to(device) for part in parts]


def needs_every_row(objective: Objective, selection: TokenSelection, bonus: EntropyBonus) -> bool:
    """Return whether a completion of advantage 0 changes the step: by a term of its own, or by what is counted over all.

    Losses without an attribute `needs_every_row` are given every row.
    """
    by_loss = bool(getattr(objective.loss, "needs_every_row", True))
    return by_loss or objective.beta > 0 or bonus.is_used or selection.counts_every_token
