"""The update of one process: log-probabilities, loss and gradient of the micro-batches of an optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from covey.metrics import Mean, Metric, Total
from covey.update import build
from covey.update import old_logprobs as prepare
from covey.update.activation_offload import offloaded
from covey.update.assemble import assemble
from covey.update.forward import Forward
from covey.update.micro_batch import MicroBatch
from covey.update.objective import Objective
from covey.update.oom_retry import Repetition
from covey.update.reference import Reference
from covey.update.samples import Sample
from covey.update.terms import Loss, loss_terms


class Updater:
    """Step 3 of GRPO. It holds no weights: the model that is trained comes with each call.

    Args:
        settings: by name, validated.
        policy: the model as it was loaded.
        loss: in place of the one that the settings name.
        reference: what the policy is compared with; None where it is not.
        repetition: what is done where memory runs out.
        accelerator: knows the precision to compute in and how processes share gradients.
        note: takes metrics.
        gather: every process's value, in the order of the processes.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        policy: nn.Module,
        loss: Loss | None,
        reference: Reference | None,
        repetition: Repetition,
        accelerator: Any,
        note: Callable[[Mapping[str, Metric]], None],
        gather: Callable[[Any], list[Any]],
    ) -> None:
        self.settings, self.reference, self.repetition = settings, reference, repetition
        self.accelerator, self.note, self.gather = accelerator, note, gather
        self.forward = Forward(policy, settings["temperature"])
        self.objective: Objective = build.make_objective(settings, loss)
        self.selection = build.make_selection(settings, loss)
        self.reduction = build.make_reduction(settings)
        self.needs_every_row = build.needs_every_row(settings, loss)
        self.bonus = build.make_entropy_bonus(settings)
        self.batches: list[MicroBatch] = []
        """Of the present optimizer step."""
        self._trained = 0
        """How many of them have been trained on."""
        self._pending: list[tuple[Tensor, dict[str, Metric]]] = []
        """Losses and metrics of the parts of the present micro-batch."""

    def restart(self) -> None:
        """A run begins: the coefficient of the entropy bonus is where the settings put it."""
        self.bonus = build.make_entropy_bonus(self.settings)

    def begin_step(self, batches: list[MicroBatch]) -> None:
        """An optimizer step begins, on these micro-batches."""
        self.batches, self._trained = batches, 0

    # --- before the policy moves ----------------------------------------------------------------------------------------

    def assembled(
        self, samples: Sequence[Sample], rows: Sequence[range], accumulation: int
    ) -> list[MicroBatch]:
        """The micro-batches of a window.

        Args:
            rows: numbers of each micro-batch's samples.
            accumulation: micro-batches per optimizer step.
        """
        cut = [[(i, samples[i]) for i in part] for part in rows]
        return assemble(cut, accumulation, self.reduction, self.gather, self.needs_every_row)

    def prepared(self, model: nn.Module, batches: list[MicroBatch], accumulation: int) -> list[MicroBatch]:
        """A window's micro-batches with all that has to be known of them before the policy moves."""
        entropies = prepare.add_old(batches, accumulation, self.selection, partial(self.logprobs, model))
        if self.reference is not None and not self.settings["kl_in_reward"]:
            self._add_reference(model, batches)
        prepare.choose(batches, entropies, accumulation, self.selection, self.gather)
        return batches

    def penalties(
        self, model: nn.Module, samples: Sequence[Sample], size: int, device: torch.device
    ) -> list[float]:
        """What the divergence to the reference takes off the reward of each completion; `size` are computed at a time."""
        add_reference = partial(self._add_reference, model)
        penalties: list[float] = []
        for part, kl in prepare.divergences(
            samples, size, self.objective.kl_estimator, device, add_reference
        ):
            penalties += [self.settings["beta"] * divergence for divergence in part]
            self.note({"kl": kl})
        return penalties

    def logprobs(self, model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of a micro-batch's tokens, each of shape (tokens,)."""
        with self.accelerator.autocast():
            if torch.is_grad_enabled():
                return self.forward(model, batch)
            cut = self.repetition.budget.cut
            found = self.repetition.until_it_fits(
                lambda: [self.forward(model, part) for part in cut(batch)], batch
            )
        return torch.cat([logprobs for logprobs, _ in found]), torch.cat([entropy for _, entropy in found])

    def _add_reference(self, model: nn.Module, batches: Sequence[MicroBatch]) -> None:
        assert self.reference is not None, "made where beta is not 0"
        prepare.add_reference(batches, self.reference, model, self.logprobs)

    # --- the gradient ---------------------------------------------------------------------------------------------------

    def loss(self, model: nn.Module, batch: MicroBatch) -> Tensor:
        """The share of a micro-batch, or of a part of one, in the loss of its optimizer step. Scalar."""
        with offloaded(model) if self.settings["activation_offloading"] else nullcontext():
            new, entropy = self.logprobs(model, batch)
            if batch.old is None:
                batch.old = new.detach()
            loss, metrics = self.objective(loss_terms(batch, new, entropy), self.bonus.present)
        self._pending.append((loss.detach(), metrics))
        return loss

    def train(self, model: nn.Module, step: Callable[[MicroBatch], Tensor]) -> Tensor:
        """Forward and backward of the step's next micro-batch; where memory runs out, once more from the start of the step.

        Args:
            step: forward and backward of a part.
        """
        self._trained += 1
        return self.repetition.train(
            partial(self._train, model, step),
            self.batches[: self._trained],
            partial(model.zero_grad, set_to_none=True),
        )

    def _train(self, model: nn.Module, step: Callable[[MicroBatch], Tensor], batch: MicroBatch) -> Tensor:
        """In as many passes as the budget asks for."""
        self._pending.clear()
        losses, parts = [], self.repetition.budget.cut(batch)
        for part in parts:
            is_last = part is parts[-1]
            with nullcontext() if is_last else self.accelerator.no_sync(model), self.forward.layout(part):
                losses.append(step(part))
        if batch.old is None:
            batch.old = torch.cat([cast(Tensor, p.old) for p in parts])
        return torch.stack(losses).sum()

    def note_update(self, batch: MicroBatch) -> None:
        """Metrics of a micro-batch, once all of its parts have gone through."""
        for _, metrics in self._pending:
            self.bonus.observe(cast(Mean, metrics["entropy"]))
            self.note(metrics)
        if math.isfinite(value := sum(float(loss) for loss, _ in self._pending)):
            # Summed over the micro-batches of a step; over steps and processes, which the weight makes up for, the mean.
            is_first = batch is self.batches[0]
            self.note({"loss": Mean(value * self.repetition.ranks, float(is_first))})
        rows = batch.num_dropped + batch.num_rows
        self.note({"update/dropped_share": Mean(batch.num_dropped, rows)})
        self.note({"update/out_of_memory": Total(0)})
        if self.bonus.is_used:
            self.note({"entropy_coef": Mean(self.bonus.present)})
