"""GRPOTrainer: the three steps on transformers.Trainer's hooks.

    get_batch_samples   once per optimizer step:  engine.generate → scorer.run_rewards → micro-batches    1 sample, 2 score
    compute_loss        once per micro-batch:     forward → objective                               3 update

The Trainer owns the loop, so callbacks, schedulers, optimizers, loggers and checkpoints are the ones people know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from covey.config import GRPOConfig
from covey.config.hardware import peak_memory_mb
from covey.errors import DatasetError
from covey.metrics import Largest, Mean, Total, merge
from covey.models.inspect import context_length
from covey.plan import warn_if_cycled
from covey.rewards.mixture import Mixture
from covey.sample.engine import Engine, in_order
from covey.score.score_metrics import completion_metrics, no_task_metrics, task_metrics, token_metrics
from covey.trainer import checks as setup
from covey.trainer import parts as construction
from covey.trainer.allotment import Allotment, window_loader
from covey.trainer.checkpoint.state import RunState, check_reward_states
from covey.trainer.checkpoint.timing import is_over
from covey.trainer.data import Numbered
from covey.trainer.dynamic_sampling import refilled
from covey.trainer.evaluation import Evaluation, joined, own_prompts, sample_and_score
from covey.trainer.nonfinite import Guard
from covey.trainer.recorded import RecordedTrainer
from covey.types import Group, Prompt, ScoredGroup
from covey.update.micro_batch import MicroBatch
from covey.update.oom_retry import OomRetry, TokenBudget
from covey.update.reference import Reference
from covey.update.rollout_buffer import RolloutBuffer
from covey.update.samples import Sample, samples_of
from covey.update.terms import Loss

TRAINING, EVALUATION = 0, 1
"""First part of the step that random numbers depend on: evaluation has numbers of its own."""


class GRPOTrainer(RecordedTrainer):
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
        peft_config: train this adapter instead of all weights: LoRA or its kin, none that learns prompts.
        model_init_kwargs: arguments for from_pretrained, when the model is given by name.
        quantization_config: quantises the frozen weights of a model given by name.
        compute_metrics: `f(covey.trainer.evaluation.Evaluation)` → numbers by name, after each evaluation. A metric that is not the
            reward tells whether the policy got better or found a hole.
        loss: a loss of your own, in place of the one that `args.loss_type` names: a function of
            `covey.update.terms.LossTerms` that returns one loss per token. `args.loss_type` says how they are summed.

    Overridden hooks of `transformers.Trainer`: `get_train_dataloader` (rows of a window), `get_batch_samples`,
    `compute_loss`, `training_step` (repeats what ran out of memory), `_get_grad_norm` (drops a step that is not finite),
    `evaluate` (samples and scores; no loss), and those of `covey.trainer.recorded`, which record, save and resume.

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
        given = construction.Given(
            model, processing_class, peft_config, model_init_kwargs, quantization_config
        )
        name = given.name
        args = args or given.default_settings()
        if loss is not None:
            setup.check_own_loss(args, loss)
        rewards, weights = construction.load_rewards(
            args, reward_funcs, reward_processing_classes, train_dataset, eval_dataset
        )
        setup.check_prompts(train_dataset, eval_dataset)
        tokenizer, policy, ending = construction.load_policy(args, given)
        self._make_plan(args, tokenizer, policy, ending, train_dataset)
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
        setup.keep_outputs(self.accelerator)
        self.engine: Engine = construction.make_engine(args, tokenizer, ending, self.accelerator.autocast)
        self._make_scorer(rewards, weights)
        self.keep_books(
            lambda: construction.make_recording(args, self.plan, weights, self.model, name, train_dataset)
        )
        self.books.note({**no_task_metrics(self.tasks), "num_tokens": Total(0)})
        self._make_update(policy, loss)

    def _make_plan(
        self, args: GRPOConfig, tokenizer: Any, policy: nn.Module, ending: Sequence[int], dataset: Any
    ) -> None:
        """How prompts are read and sampled, and how many there are."""
        self.sampling = construction.make_sampling(args, ending, tokenizer.pad_token_id)
        self.eval_sampling = construction.make_eval_sampling(args, self.sampling)
        self.reader = setup.prompt_reader(args, tokenizer, context_length(policy))
        self.kept_rows = setup.kept_rows(dataset, self.reader)
        self.plan = setup.training_plan(args, self.kept_rows, dataset is not None)
        self.allotment = Allotment(self.plan, self.reader, args.process_index, args.world_size)

    def _make_scorer(self, rewards: Mixture, weights: Mapping[str, float]) -> None:
        self.tasks = setup.task_names(self.train_dataset, self.args.task_column)
        rewards.tasks |= set(self.tasks)
        self.has_signal = construction.signal_test(self.args, weights)
        self.rewards = rewards
        self.scorer = construction.make_scorer(self.args, rewards, weights, self._exchange)

    def _make_update(self, policy: nn.Module, loss: Loss | None) -> None:
        args = self.args
        setup.check_can_cut(args, self.accelerator.distributed_type)
        self.num_weights = sum(p.numel() for p in policy.parameters())
        self.rollout = RolloutBuffer()
        self.guard = Guard(args.max_nonfinite_steps, self._output_dir, self.processing_class.decode)
        self.reference = Reference(self.model) if args.beta else None
        self.updater = construction.make_updater(
            args,
            policy,
            loss,
            reference=self.reference,
            oom_retry=OomRetry(
                TokenBudget(args.max_tokens_per_forward),
                lambda: self._present_step,
                self._note_oom_retry,
                args.process_index,
                args.world_size,
            ),
            accelerator=self.accelerator,
            note=self.books.note,
            gather=self._exchange,
        )

    # --- 1 sample, 2 score ------------------------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, MicroBatch]], Tensor | None]:
        """The micro-batches of the next optimizer step; samples and scores where the last round is used up."""
        if is_over(self.state):
            return [], None
        self.draw_as_before()
        rows = [row for _ in range(num_batches) for row in next(epoch_iterator, ())]
        if self.rollout.is_spent:
            if not rows:
                return [], None
            scored = self._sample_and_score(rows)
            self.rollout.fill(self._micro_batches(scored, device), self.args.num_iterations)
        batches = self.rollout.next(num_batches)
        self.updater.begin_step(batches)
        self.books.begin_step()
        tokens = sum(int(b.mask.sum()) for b in batches)
        return [{"batch": b} for b in batches], torch.tensor(tokens, device=device)

    def _sample_and_score(self, rows: Sequence[Numbered]) -> list[ScoredGroup]:
        """A window's scored groups: this process's own, or all of them where groups straddle processes."""
        rounds = self.read_or_save(lambda: self.allotment.rounds(rows))
        scored = [s for prompts, reserve in rounds for s in self._score(prompts, reserve)]
        everything = self.allotment.in_order(self._exchange(scored))
        if self.books.recording is not None:
            self.books.recording.groups(self._present_step, everything)
        return scored if self.plan.keeps_groups_whole else everything

    def _score(self, prompts: Sequence[Prompt], reserve: Sequence[Numbered]) -> list[ScoredGroup]:
        """Scored groups of these prompts, or of fresh ones where dynamic sampling replaced them."""
        scored = self._attempt(prompts)
        if self.args.dynamic_sampling:
            fresh, limit = self.allotment.fresh(reserve), self.args.dynamic_sampling_rounds
            scored, metrics = refilled(scored, self.has_signal, fresh, limit, self._attempt, self._exchange)
            self.books.note(metrics)
        with self.books.timed("score"):
            scored, metrics = self.scorer.add_advantages(scored)
        self.books.note(metrics)
        return scored

    def _attempt(self, prompts: Sequence[Prompt]) -> list[ScoredGroup]:
        """Sample groups and ask the rewards."""
        groups = self._sample(prompts)
        with self.books.timed("score"):
            scored, metrics = self.scorer.run_rewards(groups, self.state, self._kl_penalties(groups))
        tasks = task_metrics(scored, self.args.task_column)
        self.books.note(merge(metrics, completion_metrics(groups), tasks, token_metrics(groups)))
        return scored

    def _sample(self, prompts: Sequence[Prompt]) -> list[Group]:
        window = self.state.global_step * self.plan.accumulation // self.plan.window_passes
        settings = replace(self.sampling, step=(TRAINING, window))
        with self.books.timed("sample"):
            self.engine.load(self.accelerator.unwrap_model(self.model_wrapped))
            groups = in_order(prompts, self.engine.generate(prompts, self.plan.group_size, settings))
            self.engine.sleep()
            return groups

    def _kl_penalties(self, groups: Sequence[Group]) -> list[float] | None:
        """What the divergence to the reference takes off the reward of each completion; None where it is in the loss."""
        if not self.args.kl_in_reward:
            return None
        samples = [Sample(g.prompt, c, 0.0, n) for n, g in enumerate(groups) for c in g.completions]
        size = self.args.per_device_train_batch_size
        return self.updater.kl_penalties(self.model, samples, size, self.args.device)

    # --- 3 update -----------------------------------------------------------------------------------------------------

    def _micro_batches(self, scored: list[ScoredGroup], device: torch.device) -> list[MicroBatch]:
        """This process's micro-batches of a rollout, with the log-probabilities that the objective compares with."""
        samples = samples_of(scored, self.args.mask_truncated_completions)
        cut = [self.allotment.micro_batch_rows(number) for number in range(self.plan.window)]
        batches = self.updater.build_micro_batches(samples, cut, self.plan.accumulation)
        with self.books.timed("update"):
            batches = [b.to(device) for b in batches]
            self.updater.prepare(self.model, batches, self.plan.accumulation)
        return batches

    def compute_loss(  # type: ignore[override]  # a micro-batch instead of a dictionary of tensors
        self,
        model: nn.Module,
        inputs: dict[str, MicroBatch],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """The share of one micro-batch, or of a part of one, in the loss of its optimizer step."""
        # Gradients are averaged over processes; the weights already hold the totals over all of them.
        return self.updater.loss(model, inputs["batch"]) * self.args.world_size

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of a micro-batch; where memory runs out, once more from the start of the optimizer step."""
        step = super().training_step
        with self.books.timed("update"):
            loss = self.updater.train(model, lambda part: step(model, {"batch": part}, *args, **kwargs))
        self.updater.note_update(inputs["batch"])
        return loss

    def _note_oom_retry(self, event: str) -> None:
        self.books.event("warning", event, self._present_step)
        self.books.note({"update/out_of_memory": Total(1)})

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """A step whose gradient is not finite is not applied; see `covey.trainer.nonfinite`."""
        norm = super()._get_grad_norm(model, grad_norm)
        # float16 training meets infinite gradients while it looks for a scale, and skips such steps itself.
        is_good = self.guard.passes(norm) or self.accelerator.scaler is not None
        self.books.note({"update/nonfinite_steps": Total(0 if is_good else 1 / self.args.world_size)})
        if not is_good:
            event = self.guard.drop(model, self._present_step, self.updater.batches)
            self.books.event("warning", event, self._present_step)
            norm = 0.0
        self.books.step.add(
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
        if not isinstance(dataset, dict):
            return self._evaluate_one(dataset, metric_key_prefix)
        results = [
            self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}") for name, part in dataset.items()
        ]
        return {name: value for result in results for name, value in result.items()}

    def _evaluate_one(self, dataset: Any, prefix: str) -> dict[str, float]:
        start = time.perf_counter()
        metrics, groups = self._evaluated(dataset)
        seconds = time.perf_counter() - start
        count = sum(len(s.totals) for s in groups)
        metrics |= {"runtime": seconds, "samples_per_second": count / seconds}
        named = {f"{prefix}_{name}": value for name, value in metrics.items()}
        if self.books.recording is not None:
            name = prefix.removeprefix("eval").removeprefix("_") or "eval"
            self.books.recording.session.evaluation(name, self.state.global_step, metrics, groups)
        self.log(named)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named

    def _evaluated(self, dataset: Any) -> tuple[dict[str, float], list[ScoredGroup]]:
        """Metrics and groups over all processes; each process takes every n-th row."""
        prompts = own_prompts(dataset, self.reader, self.args.process_index, self.args.world_size)
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
        self.engine.sleep()
        return joined(self._exchange((metrics, own)), self.args.task_column, cast(Any, self.compute_metrics))

    # --- the Trainer's other hooks ------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Rows of whole windows, one item per micro-batch; the same on every process."""
        rounds = self.args.dynamic_sampling_rounds if self.args.dynamic_sampling else 0
        return window_loader(
            self.train_dataset,
            self.kept_rows,
            self.plan,
            self.reader,
            self.plan.prompts_per_window * rounds,
            self.args.seed if self.args.shuffle_dataset else None,
            lambda: self.state.global_step,
        )

    def end_of_step(self) -> None:
        """Called once per optimizer step, when it is done and counted."""
        self.books.note({"memory/peak_mb": Largest.of([peak_memory_mb(self.args.device)])})
        step = self.state.global_step
        if self.args.sync_ref_model and step % self.args.ref_model_sync_steps == 0:
            assert self.reference is not None, "checked by GRPOConfig"
            self.reference.move_towards(self.model, self.args.ref_model_mixup_alpha)
        metrics = self.books.numbers_of_step()
        self.state.num_input_tokens_seen += int(metrics["num_tokens"])
        metrics["num_tokens"] = self.state.num_input_tokens_seen
        if self.books.recording is not None:
            self.books.recording.step(step, metrics)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """6 per weight and token (arXiv:2001.08361, section 2.1)."""
        return 6 * inputs["batch"].num_tokens * self.num_weights

    def restart(self) -> None:
        """Called before a run begins or goes on."""
        check_reward_states(self.rewards)
        self.rollout = RolloutBuffer()
        self.updater.bonus.restart()

    def run_state(self) -> RunState:
        moved = self.reference if self.args.sync_ref_model else None
        return RunState(self.rollout, self.books.ledgers, self.updater.bonus, self.guard, self.rewards, moved)

    def position_in_window(self) -> int:
        return self.state.global_step * self.plan.accumulation % self.plan.window_passes
