"""GRPOTrainer: the three steps on transformers.Trainer's hooks.

    get_batch_samples   once per optimizer step:  engine.generate → scorer.score → micro-batches    1 sample, 2 score
    compute_loss        once per micro-batch:     forward → objective                               3 update

The Trainer owns the loop, so callbacks, schedulers, optimizers, loggers and checkpoints are the ones people know.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from covey import loading, setup
from covey.causal import context_length
from covey.checkpoint.folders import checkpoints
from covey.checkpoint.saving import WholeCheckpoints
from covey.checkpoint.state import RunState, check_reward_states, load_state, save_state
from covey.checkpoint.timing import EndOfEpoch, is_over
from covey.config import GRPOConfig
from covey.errors import ConfigError, CoveyWarning, DatasetError
from covey.evaluation import Evaluation, sample_and_score, summary
from covey.groups import Group, Prompt, ScoredGroup
from covey.guard import Guard
from covey.hardware import peak_memory_mb
from covey.metrics import Largest, Ledger, Mean, Metric, Total, merge
from covey.plan import warn_if_cycled
from covey.recording import Recording, resolved_display
from covey.refill import refilled
from covey.rewards.mixture import Mixture
from covey.runs.environment import dataset_facts
from covey.sample.chat import decode_text, stop_ids
from covey.sample.engine import Engine, in_order
from covey.sample.loader import Numbered, WindowSampler, WindowStream, map_loader, stream_loader
from covey.sample.native import NativeEngine
from covey.sample.prompts import seed_keys
from covey.score.advantages import Scale
from covey.score.estimators import estimator
from covey.score.filters import carries_signal
from covey.score.scorer import Judged, Scorer, completion_metrics, no_task_metrics, task_metrics
from covey.score.shaping import Shaping
from covey.score.signals import Signals
from covey.signals import RunStopped, StopAfterStep, StopSignals, farewell
from covey.update import build
from covey.update.assemble import assemble
from covey.update.batch import MicroBatch, Sample, micro_batch, samples_of
from covey.update.budget import Budget, free_memory, is_out_of_memory
from covey.update.forward import Forward
from covey.update.kl import completion_divergences, k3
from covey.update.objective import Objective
from covey.update.offload import offloaded
from covey.update.reference import Reference
from covey.update.terms import Loss, loss_terms
from covey.update.window import Window

T = TypeVar("T")

TRAINING, EVALUATION = 0, 1
"""First part of the step that random numbers depend on: evaluation has numbers of its own."""

PHASES = ("sample", "score", "update")


class GRPOTrainer(WholeCheckpoints):
    """Trains a causal language model with GRPO on any mixture of rewards.

    Args:
        model: the policy: a name, a folder, a `ModelConfig`, a module, or a `PeftModel`.
        reward_funcs: one reward or a list. A function `f(completions, ...)` → one number or None per completion; the
            name or folder of a reward model; or such a module.
        args: settings; the defaults where None.
        train_dataset: rows with a column `prompt` (text or messages); other columns reach the rewards. Map-style or
            iterable.
        eval_dataset: the same, or a dictionary of several by name.
        processing_class: the policy's tokenizer; by default the one that belongs to the model.
        reward_processing_classes: tokenizers of reward models; by default their own.
        callbacks: `transformers.TrainerCallback`s.
        optimizers: an optimizer and a scheduler; by default those that `args` names.
        peft_config: train this adapter instead of all weights.
        model_init_kwargs: arguments for from_pretrained, when the model is given by name.
        quantization_config: quantises the frozen weights of a model given by name.
        compute_metrics: `f(covey.evaluation.Evaluation)` → numbers by name, after each evaluation. A metric that is not the
            reward tells whether the policy got better or found a hole.
        loss: a loss of your own, in place of the one that `args.loss_type` names: a function of
            `covey.update.terms.LossTerms` that returns one loss per token. `args.loss_type` says how they are summed.

    Overridden hooks of `transformers.Trainer`: `get_train_dataloader` (rows of a window), `get_batch_samples`,
    `compute_loss`, `evaluate` (samples and scores; no loss), `log` (adds the metrics of the steps), and those that save,
    resume and guard against numbers that are not finite.

    Raises:
        ConfigError, DatasetError, LoadingError, RewardError: before anything is sampled.
    """

    loss_is_scaled_for_ga = True

    args: GRPOConfig
    model: nn.Module
    processing_class: Any
    eval_dataset: Any

    def __init__(
        self,
        model: str | nn.Module | Any,
        reward_funcs: Any,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        peft_config: Any = None,
        model_init_kwargs: dict[str, Any] | None = None,
        quantization_config: Any = None,
        compute_metrics: Callable[[Evaluation], Mapping[str, float]] | None = None,
        loss: Loss | None = None,
    ) -> None:
        name = loading.model_name(model)
        args = args or GRPOConfig(output_dir=f"{Path(name).name or 'model'}-GRPO")
        if loss is not None:
            build.check_own_loss(vars(args), {f.name: f.default for f in fields(args)})
        rewards = loading.load_rewards(reward_funcs, reward_processing_classes, args.device)
        weights = setup.reward_weights(rewards, args.reward_weights)
        setup.check_columns(rewards, train_dataset, eval_dataset)
        tokenizer = loading.load_tokenizer(processing_class, model, args.trust_remote_code)
        policy = loading.load_policy(
            model,
            setup.one_source(model_init_kwargs, args.model_init_kwargs),
            trust_remote_code=args.trust_remote_code,
            quantization_config=quantization_config,
            strict_hardware=args.strict_hardware,
        )
        loading.check_causal(policy)
        policy = loading.with_adapter(policy, peft_config, args.seed)
        if args.disable_dropout:
            loading.switch_off_dropout(policy)
        more_ends = setup.as_dict(args.generation_kwargs).get("eos_token_id", ())
        ending = stop_ids(tokenizer, loading.generation_config(policy), more_ends)
        self.sampling = setup.sampling(args, ending, tokenizer.pad_token_id)
        self.eval_sampling = setup.eval_sampling(args, self.sampling)
        self.reader = setup.prompt_reader(args, tokenizer, context_length(policy))
        self.kept_rows = setup.kept_rows(train_dataset, self.reader)
        self.plan = setup.training_plan(args, self.kept_rows, train_dataset is not None)
        warn_if_cycled(self.plan)
        args.gradient_accumulation_steps = self.plan.accumulation

        super().__init__(
            model=policy,
            args=args,
            data_collator=list,  # type: ignore[arg-type]  # rows stay rows
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        # Some releases know no `loss_is_scaled_for_ga`; there this stops the division by the accumulation.
        self.model_accepts_loss_kwargs = True
        self.compute_metrics = compute_metrics  # type: ignore[assignment]
        setup.let_gradients_through(policy)
        self._make_sampler(ending)
        self._make_scorer(rewards, weights)
        self._make_update(policy, loss)
        self._make_records(weights, name)

    def _make_sampler(self, ending: Sequence[int]) -> None:
        tokenizer, keep = self.processing_class, self.args.keep_special_tokens
        unsaid = frozenset(i for i in (*ending, tokenizer.pad_token_id) if i is not None)
        self.engine: Engine = NativeEngine(
            lambda ids: decode_text(tokenizer, ids, unsaid, keep), self.accelerator.autocast
        )

    def _make_scorer(self, rewards: Mixture, weights: Mapping[str, float]) -> None:
        args = self.args
        estimate = estimator(
            args.advantage_estimator,
            args.multi_objective_aggregation,
            cast(Scale, args.scale_rewards),
        )
        rewards.tasks |= set(setup.task_names(self.train_dataset, args.task_column))
        fixed = None if args.reward_weights is None else weights  # the rewards' own may change over training
        self.weights = weights
        unknown = set(args.dynamic_sampling_rewards or ()) - set(weights)
        if unknown:
            raise ConfigError(
                f"dynamic_sampling_rewards names {', '.join(map(repr, sorted(unknown)))}; the rewards are "
                f"{', '.join(map(repr, weights))}."
            )
        shaping = Shaping(args.truncated_reward, args.truncated_in_baseline)
        self.rewards = rewards
        self.scorer = Scorer(rewards, fixed, estimate, self._gather, args.process_index, shaping)

    def _make_update(self, policy: nn.Module, loss: Loss | None) -> None:
        setup.check_can_cut(self.args, self.accelerator.distributed_type)
        settings = vars(self.args)
        self.forward = Forward(policy, self.args.temperature, fast=setup.can_pack(policy))
        self.objective: Objective = build.make_objective(settings, loss)
        self.reduction = build.make_reduction(settings)
        self.selection = build.make_selection(settings, loss)
        self.entropy_bonus = build.make_entropy_bonus(settings)
        self.needs_every_row = build.needs_every_row(settings, loss)
        self.reference = Reference(self.model) if self.args.beta else None
        self.num_weights = sum(p.numel() for p in policy.parameters())
        self.window = Window()
        self._random_state_of: str | None = None
        self.guard = Guard(self.args.max_nonfinite_steps, self._output_dir, self.processing_class.decode)
        self._step_batches: list[MicroBatch] = []
        self.budget = Budget(self.args.max_tokens_per_forward)
        self._trained = 0
        self._pending: list[tuple[Tensor, dict[str, Metric]]] = []

    def _make_records(self, weights: Mapping[str, float], name: str) -> None:
        self.ledger, self.step_ledger, self.run_ledger, self.signals = Ledger(), Ledger(), Ledger(), Signals()
        self._note(no_task_metrics(setup.task_names(self.train_dataset, self.args.task_column)))
        self._note({"num_tokens": Total(0)})
        settings = {**self.args.to_dict(), "display": resolved_display(self.args.display)}
        if settings["display"] == "live":
            self.remove_callback(ProgressCallback)
            self.remove_callback(PrinterCallback)
        facts = {"model": _model_facts(self.model, name), "dataset": dataset_facts(self.train_dataset)}
        self.recording: Recording | None = None
        if self.is_world_process_zero():
            self.recording = Recording(self._output_dir, settings, weights, self.plan, facts)
        is_main = self.is_world_process_zero()
        self.stop = StopAfterStep(StopSignals(is_main, self.args.world_size > 1), self._gather)
        self.resume_command: str | None = None
        self._remarks: tuple[str, ...] = ()
        for callback in (self.stop, EndOfEpoch(), _Moments(self)):
            self.add_callback(callback)

    # --- 1 sample, 2 score ------------------------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, MicroBatch]], Tensor | None]:
        """The micro-batches of the next optimizer step; samples and scores where the last round is used up."""
        if is_over(self.state):
            return [], None
        self._draw_as_before()
        self.entropy_bonus.next_step(self._gather)
        rows = [row for _ in range(num_batches) for row in next(epoch_iterator, ())]
        if self.window.is_spent:
            if not rows:
                return [], None
            scored = self._sample_and_score(rows)
            self.window.open(self._micro_batches(scored, device), self.args.num_iterations)
        self._step_batches, self._trained = self.window.next(num_batches), 0
        self._note({f"time/{phase}": Mean(0.0, 1.0) for phase in PHASES})
        self._note({"loss": Mean(0.0, 0.0)})  # known by name, even if the first steps' are not finite
        tokens = sum(int(b.mask.sum()) for b in self._step_batches)
        return [{"batch": b} for b in self._step_batches], torch.tensor(tokens, device=device)

    def _sample_and_score(self, rows: Sequence[Numbered]) -> list[ScoredGroup]:
        """A window's scored groups: this process's own, or all of them where groups straddle processes."""
        size = self.plan.prompts_per_window
        rounds = self.plan.window // self.plan.steps_per_generation
        own = _parts(self._own_prompts(rows[:size]), rounds)
        reserve = _parts(rows[size:], rounds)
        scored = [s for part, more in zip(own, reserve, strict=True) for s in self._score(part, more)]
        everything = self._in_order_of_window(scored, size)
        if self.recording is not None:
            self.recording.groups(self.state.global_step + 1, everything)
        return scored if self.plan.keeps_groups_whole else everything

    def _own_prompts(self, rows: Sequence[Numbered]) -> list[Prompt]:
        """Those of a window's prompts whose groups this process samples and scores."""
        keys = seed_keys([number for number, _ in rows])
        return [
            self.reader.read(row, number, key)
            for position, ((number, row), key) in enumerate(zip(rows, keys, strict=True))
            if self.plan.owner(position) == self.args.process_index
        ]

    def _score(self, prompts: Sequence[Prompt], reserve: Sequence[Numbered]) -> list[ScoredGroup]:
        """Scored groups of these prompts, or of fresh ones where dynamic sampling replaced them."""
        judged = self._attempt(prompts)
        if self.args.dynamic_sampling:
            judged, metrics = refilled(
                judged,
                self._has_signal,
                self._fresh_prompts(reserve),
                self.args.dynamic_sampling_rounds,
                self._attempt,
                self._gather,
            )
            self._note(metrics)
        with self._timed("score"):
            scored, metrics = self.scorer.settle(judged)
        self._note(metrics)
        self.signals.check(scored, self.state.global_step)
        return scored

    def _attempt(self, prompts: Sequence[Prompt]) -> list[Judged]:
        """Sample groups and ask the rewards."""
        groups = self._sample(prompts)
        with self._timed("score"):
            judged, metrics = self.scorer.judge(groups, self.state, self._kl_penalties(groups))
        tasks = task_metrics([j.scored for j in judged], self.args.task_column)
        self._note(merge(metrics, completion_metrics(groups), tasks, _token_metrics(groups)))
        return judged

    def _has_signal(self, judged: Judged) -> bool:
        names = self.args.dynamic_sampling_rewards or list(judged.scored.scores)
        weights = dict.fromkeys(names, 1.0) if self.args.dynamic_sampling_rewards else self.weights
        per_reward = self.args.multi_objective_aggregation == "normalize_then_sum"
        return carries_signal(judged.scored, {n: weights[n] for n in names}, per_reward)

    def _fresh_prompts(self, rows: Sequence[Numbered]) -> list[Prompt]:
        """This process's share of the rows kept for dynamic sampling."""
        own = rows[self.args.process_index :: self.args.world_size]
        return [self.reader.read(row, number, (number, 0)) for number, row in own]

    def _sample(self, prompts: Sequence[Prompt]) -> list[Group]:
        window = self.state.global_step * self.plan.accumulation // self.plan.window_passes
        settings = replace(self.sampling, step=(TRAINING, window))
        with self._timed("sample"):
            self.engine.load(self.accelerator.unwrap_model(self.model_wrapped))
            return in_order(prompts, self.engine.generate(prompts, self.plan.group_size, settings))

    def _in_order_of_window(self, scored: list[ScoredGroup], count: int) -> list[ScoredGroup]:
        """Every process's groups in the order of the window."""
        of_rank = [iter(part) for part in self._gather(scored)]
        return [next(of_rank[self.plan.owner(position)]) for position in range(count)]

    # --- 3 update -----------------------------------------------------------------------------------------------------

    def compute_loss(  # type: ignore[override]  # a micro-batch instead of a dictionary of tensors
        self,
        model: nn.Module,
        inputs: dict[str, MicroBatch],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """The share of one micro-batch, or of a part of one, in the loss of its optimizer step."""
        batch = inputs["batch"]
        with offloaded(model) if self.args.activation_offloading else nullcontext():
            new, entropy = self._logprobs(model, batch)
            if batch.old is None:
                batch.old = new.detach()
            loss, metrics = self.objective(loss_terms(batch, new, entropy), self.entropy_bonus.present)
        self._pending.append((loss.detach(), metrics))
        # Gradients are averaged over processes; the weights already hold the totals over all of them.
        return loss * self.args.world_size

    def _note_update(self, batch: MicroBatch) -> None:
        """Metrics of a micro-batch, once all of its parts have gone through."""
        for _, metrics in self._pending:
            self.entropy_bonus.observe(cast(Mean, metrics["entropy"]))
            self._note(metrics)
        if math.isfinite(value := sum(float(loss) for loss, _ in self._pending)):
            # Summed over the micro-batches of a step; over steps and processes, which the weight makes up for, the mean.
            is_first = batch is self._step_batches[0]
            self._note({"loss": Mean(value * self.args.world_size, float(is_first))})
        rows = batch.num_dropped + batch.num_rows
        self._note({"update/dropped_share": Mean(batch.num_dropped, rows)})
        self._note({"update/out_of_memory": Total(0)})
        if self.entropy_bonus.is_used:
            self._note({"entropy_coef": Mean(self.entropy_bonus.present)})

    def _micro_batches(self, scored: list[ScoredGroup], device: torch.device) -> list[MicroBatch]:
        """This process's micro-batches of a window, with the log-probabilities that the objective compares with."""
        samples = samples_of(scored, self.args.mask_truncated_completions)
        cut = [[(i, samples[i]) for i in self._rows_of(number)] for number in range(self.plan.window)]
        batches = assemble(cut, self.plan.accumulation, self.reduction, self._gather, self.needs_every_row)
        with self._timed("update"):
            return self._with_logprobs([b.to(device) for b in batches])

    def _rows_of(self, number: int) -> range:
        """Numbers of a micro-batch's samples among those that this process holds."""
        if self.plan.keeps_groups_whole:  # only its own groups are here, step after step
            return range(number * self.plan.micro_batch, (number + 1) * self.plan.micro_batch)
        return self.plan.micro_batch_rows(self.args.process_index, number)

    @torch.no_grad()
    def _with_logprobs(self, batches: list[MicroBatch]) -> list[MicroBatch]:
        """Adds the log-probabilities that have to be known before the policy moves.

        The first optimizer step of a window trains the policy that sampled: its old log-probabilities are its own, and
        are kept when they are computed, for the passes to come.
        """
        entropies = []
        for number, batch in enumerate(batches):
            if number >= self.plan.accumulation or self.selection.is_needed:
                batch.old, entropy = self._logprobs(self.model, batch)
                entropies.append(entropy)
        if self.reference is not None and not self.args.kl_in_reward:
            self._add_reference(batches)
        if self.selection.is_needed:
            for first in range(0, len(batches), self.plan.accumulation):
                step = slice(first, first + self.plan.accumulation)
                self.selection.choose(batches[step], entropies[step], self._gather)
        return batches

    @torch.no_grad()
    def _kl_penalties(self, groups: Sequence[Group]) -> list[float] | None:
        """What the divergence to the reference takes off the reward of each completion; None where it is in the loss."""
        if not self.args.kl_in_reward:
            return None
        samples = [Sample(g.prompt, c, 0.0, n) for n, g in enumerate(groups) for c in g.completions]
        size, penalties = self.args.per_device_train_batch_size, []
        for first in range(0, len(samples), size):
            part = samples[first : first + size]
            batch = micro_batch(part, range(first, first + len(part)), [1.0] * len(part)).to(self.args.device)
            self._add_reference([batch])
            terms = loss_terms(batch, batch.sampled)
            assert terms.reference is not None
            penalties += completion_divergences(
                self.objective.kl_estimator, terms.sampled, terms.reference, terms.row, terms.num_rows
            )
            self._note({"kl": terms.mean(k3(terms.sampled, terms.reference))})
        return [self.args.beta * p for p in penalties]

    def _add_reference(self, batches: Sequence[MicroBatch]) -> None:
        """Log-probabilities under the reference."""
        assert self.reference is not None, "made where beta is not 0"
        with self.reference.lent_to(self.model) as reference:
            for batch in batches:
                batch.reference = self._logprobs(reference, batch)[0]

    def _logprobs(self, model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        with self.accelerator.autocast():
            if torch.is_grad_enabled():
                return self.forward(model, batch)
            found = None
            while found is None:
                found = self._with_memory(
                    lambda: [self.forward(model, part) for part in self.budget.cut(batch)], batch
                )
        return torch.cat([logprobs for logprobs, _ in found]), torch.cat([entropy for _, entropy in found])

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of a micro-batch; where memory runs out, once more from the start of the optimizer step."""
        step = super().training_step

        def train(batch: MicroBatch) -> Tensor:
            self._pending.clear()
            losses = []
            parts = self.budget.cut(batch)
            for number, part in enumerate(parts):
                is_last = number == len(parts) - 1
                with nullcontext() if is_last else self.accelerator.no_sync(model), self.forward.layout(part):
                    losses.append(step(model, {"batch": part}, *args, **kwargs))
            if batch.old is None:
                batch.old = torch.cat([cast(Tensor, p.old) for p in parts])
            return torch.stack(losses).sum()

        batch = inputs["batch"]
        self._trained += 1
        with self._timed("update"):
            loss = self._with_memory(lambda: train(batch), batch)
            while loss is None:
                model.zero_grad(set_to_none=True)
                loss = self._again(train)
        self._note_update(batch)
        return loss

    def _again(self, train: Callable[[MicroBatch], Tensor]) -> Tensor | None:
        """The optimizer step from its first micro-batch to the present one; None where memory ran out once more."""
        loss = None
        for batch in self._step_batches[: self._trained]:
            loss = self._with_memory(partial(train, batch), batch)
            if loss is None:
                return None
        return loss

    def _with_memory(self, work: Callable[[], T], batch: MicroBatch) -> T | None:
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

    def _halve(self, batch: MicroBatch, error: BaseException) -> None:
        where = f"Step {self.state.global_step + 1} ran out of memory with {batch.num_rows} completion(s)"
        if self.args.world_size > 1:
            raise torch.OutOfMemoryError(
                f"{where} on process {self.args.process_index}. Other processes are waiting in the middle of the step, so it "
                "cannot be repeated. Lower per_device_train_batch_size or max_tokens_per_forward, and resume from the "
                f"last checkpoint. The allocator said: {error}"
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
        warnings.warn(event, CoveyWarning, stacklevel=4)
        self._record_event("warning", event)
        self._note({"update/out_of_memory": Total(1)})

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """A step whose gradient is not finite is not applied; see `covey.guard`."""
        norm = super()._get_grad_norm(model, grad_norm)
        # float16 training meets infinite gradients while it looks for a scale, and skips such steps itself.
        is_good = self.guard.passes(norm) or self.accelerator.scaler is not None
        self._note({"update/nonfinite_steps": Total(0 if is_good else 1 / self.args.world_size)})
        if not is_good:
            event = self.guard.drop(model, self.state.global_step + 1, self._step_batches)
            self._record_event("warning", event)
            norm = 0.0
        self.step_ledger.add(
            {"grad_norm": Mean(float(norm)), "learning_rate": Mean(self._get_learning_rate())}
        )
        return norm

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Sample and score every row of the evaluation dataset once; no loss, and no trace in the training run.

        Returns:
            The training metrics' names with a prefix: `eval_reward`, `eval_rewards/<name>/mean`, ...; 95 % intervals over
            prompts, pass@k, the same for each task, and what `compute_metrics` gave.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if dataset is None:
            raise DatasetError("There is nothing to evaluate on. Pass eval_dataset.")
        if isinstance(dataset, dict):
            results = [
                self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}")
                for name, part in dataset.items()
            ]
            return {name: value for result in results for name, value in result.items()}
        start = time.perf_counter()
        metrics, groups = self._evaluated(dataset)
        seconds = time.perf_counter() - start
        count = sum(len(s.totals) for s in groups)
        metrics |= {"runtime": seconds, "samples_per_second": count / seconds}
        named = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        if self.recording is not None:
            name = metric_key_prefix.removeprefix("eval").removeprefix("_") or "eval"
            self.recording.session.evaluation(name, self.state.global_step, metrics, groups)
        self.log(named)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named

    def _evaluated(self, dataset: Any) -> tuple[dict[str, float], list[ScoredGroup]]:
        """Metrics and groups over all processes; each process takes every n-th row."""
        prompts = [
            self.reader.read(row, number, (number, 0))
            for number, row in enumerate(dataset)
            if number % self.args.world_size == self.args.process_index
        ]
        self.engine.load(self.accelerator.unwrap_model(self.model_wrapped))
        own, metrics = sample_and_score(
            self.engine,
            self.scorer,
            prompts,
            self.args.num_generations_eval or self.args.num_generations,
            replace(self.eval_sampling, step=(EVALUATION,)),
            self.args.per_device_eval_batch_size,
            self.state,
        )
        parts = self._gather((metrics, own))
        groups = sorted((s for _, part in parts for s in part), key=lambda s: s.group.prompt.row)
        numbers = Ledger().reduce(m for m, _ in parts) | summary(groups, self.args.task_column)
        if self.compute_metrics is not None:
            own_metrics = cast(Any, self.compute_metrics)(Evaluation.of(groups))
            numbers |= {name: float(value) for name, value in own_metrics.items()}
        return numbers, groups

    # --- the Trainer's other hooks ------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train; see `transformers.Trainer.train`.

        Ctrl-C and SIGTERM end the step, save a checkpoint and exit; see `covey.signals`.

        Args:
            resume_from_checkpoint: True or 'last': go on from the last whole checkpoint in output_dir. 'auto': the same, or
                start where there is none. A folder: that one. Default: `args.resume_from_checkpoint`.

        Raises:
            CheckpointError: the checkpoint that was asked for is damaged, or none is whole.
            RunStopped: a signal stopped the run; it ends the program unless it is caught.
        """
        if self.train_dataset is None:
            raise DatasetError("There is nothing to train on. Pass train_dataset.")
        asked = self.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint
        choice = self.choose_checkpoint(asked)
        check_reward_states(self.rewards)
        self._remarks, self._random_state_of = choice.remarks, None
        self.window, self.run_ledger = Window(), Ledger()
        self.entropy_bonus = build.make_entropy_bonus(vars(self.args))
        try:
            with self.stop.signals.heard():
                result = super().train(choice.folder, *args, **kwargs)
        except KeyboardInterrupt:
            self._close_recording("interrupted", "Stopped from the keyboard.")
            raise
        except BaseException as error:
            self._close_recording("failed", str(error), traceback=traceback.format_exc())
            raise
        signal = self.stop.stopped_by or self.stop.signals.received
        if signal:
            self._leave(signal)
        self._close_recording("finished")
        return result._replace(training_loss=result.metrics["train_loss"])

    def _leave(self, signal: int) -> NoReturn:
        """End the run that a signal stopped."""
        step, whole = self.state.global_step, list(checkpoints(Path(self._output_dir)).values())
        message = farewell(
            signal,
            step,
            self.state.max_steps,
            str(whole[-1]) if whole else None,
            self.save_fault,
            self.resume_command,
        )
        self._close_recording("finished" if is_over(self.state) else "interrupted", message)
        if self.is_world_process_zero():
            print(f"\n{message}", file=sys.stderr, flush=True)
        self.stop.signals.pass_on()
        raise RunStopped(signal, message)

    def get_train_dataloader(self) -> Any:
        """Rows of whole windows, one item per micro-batch; the same on every process."""
        plan = self.plan
        rounds = self.args.dynamic_sampling_rounds if self.args.dynamic_sampling else 0
        reserve = plan.prompts_per_window * rounds
        if self.kept_rows is None:
            return stream_loader(
                WindowStream(
                    self.train_dataset,
                    plan.prompts_per_window,
                    plan.window_passes,
                    self.reader.is_kept,
                    reserve,
                )
            )
        steps_per_epoch = plan.steps_per_epoch
        assert plan.windows_per_epoch is not None and steps_per_epoch is not None
        sampler = WindowSampler(
            self.kept_rows,
            plan.prompts_per_window,
            plan.window_passes,
            plan.windows_per_epoch,
            self.args.seed if self.args.shuffle_dataset else None,
            lambda: self.state.global_step // steps_per_epoch,
            reserve,
        )
        return map_loader(self.train_dataset, sampler)

    def begin(self) -> None:
        """Called when a run begins or goes on, before its first step."""
        if self.recording is not None:
            self.recording.begin(self.state.global_step)
        for remark in self._remarks:
            self._record_event("warning", remark, self.state.global_step)
            if self.is_world_process_zero():
                warnings.warn(remark, CoveyWarning, stacklevel=2)

    def end_of_step(self) -> None:
        """Called once per optimizer step, when it is done and counted."""
        memory = {"memory/peak_mb": Largest.of([peak_memory_mb(self.args.device)])}
        self._note(memory)
        step = self.state.global_step
        if self.args.sync_ref_model and step % self.args.ref_model_sync_steps == 0:
            assert self.reference is not None, "checked by GRPOConfig"
            self.reference.move_towards(self.model, self.args.ref_model_mixup_alpha)
        metrics = self._finished(self.step_ledger.reduce(self._gather(self.step_ledger.drain())))
        self.state.num_input_tokens_seen += int(metrics["num_tokens"])
        metrics["num_tokens"] = self.state.num_input_tokens_seen
        self.run_ledger.add({"train_loss": Mean(metrics["loss"])})
        if self.recording is not None:
            self.recording.step(step, metrics)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the metrics that came in since the last training log."""
        if "loss" in logs:
            numbers = self._finished(self.ledger.reduce(self._gather(self.ledger.drain())))
            logs = {**logs, **numbers, "num_tokens": self.state.num_input_tokens_seen}
        if "train_loss" in logs:  # the Trainer's own is that of the steps since the last start
            logs |= self.run_ledger.reduce([self.run_ledger.drain()])
        super().log(logs, start_time)
        if "loss" in logs and self.recording is not None:
            self.recording.logged(self.callback_handler.callbacks)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """6 per weight and token (arXiv:2001.08361, section 2.1)."""
        return 6 * inputs["batch"].num_tokens * self.num_weights

    def save_own_state(self, folder: Path) -> None:
        """What a checkpoint holds beside the Trainer's own; the record is on the disk before the checkpoint is in place."""
        save_state(folder, self.args.process_index, self._run_state())
        if self.recording is not None:
            self.recording.sync()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        step = self.state.global_step
        if self.save_fault is None:
            self._record_event("checkpoint", f"Checkpoint {step} saved.", step)
        else:
            self._record_event("warning", f"Checkpoint {step} could not be saved: {self.save_fault}.", step)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Called while a checkpoint is loaded, with the state of the run already known."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        position = self.state.global_step * self.plan.accumulation % self.plan.window_passes
        load_state(checkpoint, self.args.process_index, position, self._run_state())
        for batch in self.window.batches:
            vars(batch).update(vars(batch.to(self.args.device)))
        self._random_state_of = checkpoint

    def _run_state(self) -> RunState:
        ledgers = {"log": self.ledger, "step": self.step_ledger, "run": self.run_ledger}
        moved = self.reference if self.args.sync_ref_model else None
        return RunState(self.window, ledgers, self.entropy_bonus, self.guard, self.rewards, moved)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """The Trainer loads the state of the random numbers after the first batch of a resumed epoch; rewards that draw
        some have then been asked already. So it is loaded before, once."""
        if self._random_state_of is not None:
            self._random_state_of = None
            super()._load_rng_state(checkpoint)

    def _draw_as_before(self) -> None:
        self._load_rng_state(self._random_state_of)

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
        if skip_scheduler and self.state.global_step:
            return {}  # eval_on_start, which a resumed run had at its start
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    # --- helpers ------------------------------------------------------------------------------------------------------

    @property
    def _output_dir(self) -> str:
        assert self.args.output_dir is not None, "TrainingArguments fills it"
        return self.args.output_dir

    def _note(self, metrics: Mapping[str, Metric]) -> None:
        """Metrics go to the logs, which may come every few steps, and to the record, which has every step."""
        self.ledger.add(metrics)
        self.step_ledger.add(metrics)

    def _finished(self, numbers: dict[str, float]) -> dict[str, float]:
        return {**numbers, "step_time": sum(numbers[f"time/{phase}"] for phase in PHASES)}

    def _record_event(self, kind: str, message: str, step: int | None = None) -> None:
        if self.recording is not None:
            self.recording.session.event(kind, message, self.state.global_step + 1 if step is None else step)

    def _close_recording(self, end: Any, message: str | None = None, **details: Any) -> None:
        if self.recording is not None:
            self.recording.close(end, message, **details)

    def _gather(self, value: Any) -> list[Any]:
        """Every process's value, in the order of the processes."""
        return list(gather_object([value])) if self.args.world_size > 1 else [value]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Adds the seconds to the phase's mean over optimizer steps, which are counted in get_batch_samples."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._note({f"time/{phase}": Mean(time.perf_counter() - start, 0.0)})


class _Moments(TrainerCallback):
    """Tells the trainer when a run begins and when a step is over, in the Trainer's own order of events."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.end_of_step()


def _model_facts(policy: nn.Module, name: str) -> dict[str, Any]:
    """What the record and the hints want to know of the policy."""
    trainable = [p for p in policy.parameters() if p.requires_grad]
    largest = max(trainable, key=lambda p: p.numel(), default=None)
    return {
        "name": name,
        "parameters": sum(p.numel() for p in policy.parameters()),
        "trainable": sum(p.numel() for p in trainable),
        "weights_dtype": str(trainable[0].dtype).removeprefix("torch.") if trainable else None,
        "weight_scale": None
        if largest is None
        else float(largest.detach().abs().float().flatten()[:100_000].median()),
    }


def _parts(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """Cut into `count` consecutive parts of the same size."""
    size = len(values) // count
    return [values[i * size : (i + 1) * size] for i in range(count)]


def _token_metrics(groups: Sequence[Group]) -> dict[str, Metric]:
    tokens = sum(len(g.prompt.ids) + len(c.ids) for g in groups for c in g.completions)
    return {
        "num_tokens": Total(tokens),
        "prompts/cut_share": Mean.of(float(g.prompt.num_cut_tokens > 0) for g in groups),
    }
