"""GRPOTrainer: the three steps on transformers.Trainer's hooks.

    get_batch_samples   once per optimizer step:  rollout.make → micro-batches        1 sample, 2 score
    compute_loss        once per micro-batch:     forward → objective                 3 update

The Trainer owns the loop, so callbacks, schedulers, optimizers, loggers and checkpoints are the ones people know.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import PredictionOutput, TrainOutput

from covey.config import GRPOConfig, ModelConfig
from covey.config.hardware import peak_memory_mb
from covey.errors import DatasetError, warn
from covey.metrics import Largest, Ledger, Mean, Total
from covey.models.fitness import unknown_ids
from covey.models.loading import tokenizer_of
from covey.plan import Plan
from covey.rewards.pictured import check_can_see
from covey.runs.terminal.any_encoding import any_encoding
from covey.sample.engine import Engine
from covey.sample.given_data import as_eval_dataset, is_map_style, readable
from covey.text.foreign import clean, show
from covey.tools.environments import Factory
from covey.tools.rollout import RolloutFunction
from covey.trainer import checks, other_names, rehearsal
from covey.trainer.agents import Agents
from covey.trainer.best_metric import check_best_metric
from covey.trainer.checkpoint.faults import first_fault
from covey.trainer.checkpoint.saving import CheckpointedTrainer
from covey.trainer.checkpoint.state import RunState, checked_reward_states, dataset_digest
from covey.trainer.checkpoint.timing import EndOfEpoch, is_over
from covey.trainer.compute_metrics import check_compute_metrics, more_numbers
from covey.trainer.curriculum import make_curriculum
from covey.trainer.data import Numbered, make_loader
from covey.trainer.distributed import gather, same_end
from covey.trainer.evaluation import Evaluation, joined, own_prompts, sample_and_score
from covey.trainer.failure_watch import ends_with_others
from covey.trainer.late_settings import Settings
from covey.trainer.model_card import model_card
from covey.trainer.nonfinite import NonfiniteGuard
from covey.trainer.parts import (
    ModelSource,
    load_policy_and_processor,
    load_rewards,
    loader_workers,
    make_engine,
    make_entropy_bonus,
    make_eval_sampling,
    make_growth,
    make_prompts,
    make_run_log,
    make_sampling,
    make_scorer,
    make_updater,
    prompt_reader,
    seen_sizes,
    signal_test,
)
from covey.trainer.replay import make_replay
from covey.trainer.rollouts import EVALUATION, Rollouts
from covey.trainer.run_lock import only_run
from covey.trainer.sampled import Sampled
from covey.trainer.stop_signals import RunStopped, StopAfterStep, StopSignals, stop_message
from covey.trainer.task_budgets import check_tasks
from covey.types import Group, ScoredGroup
from covey.update import padded_formulas
from covey.update.micro_batch import MicroBatch
from covey.update.rollout_buffer import RolloutBuffer
from covey.update.samples import Sample, samples_of, stale_share
from covey.update.terms import Loss

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers.utils.quantization_config import QuantizationConfigMixin

T = TypeVar("T")

OF_A_ROUND = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
    "num_generations", "group_allocation", "group_allocation_first", "task_shares", "num_iterations", "max_completion_length", "temperature", "seed", "learning_rate",
)  # fmt: skip
"""Settings that a checkpoint keeps: those of a round of sampling, and the learning rate, which the schedule starts from."""


class GRPOTrainer(CheckpointedTrainer):
    """Trains a causal language model with GRPO on any mixture of rewards.

    Args:
        model: the policy: a name, a folder, a `ModelConfig`, a module, or a `PeftModel`.
        reward_funcs: one reward, a list or a mixture. A function `f(completions, ...)` → one number or None per completion; the
            name or folder of a reward model; or such a module.
        args: settings; the defaults where None.
        train_dataset: rows with a column `prompt` (text or messages); other columns reach the rewards. Map-style or
            iterable.
        eval_dataset: the same, or a dictionary of several by name.
        processing_class: the policy's tokenizer, or the processor of a policy that sees; by default what belongs to the model.
        reward_processing_classes: tokenizers of reward models; by default their own.
        callbacks: `transformers.TrainerCallback`s.
        optimizers: an optimizer and a scheduler; by default those that `args` names.
        peft_config: train this adapter instead of all weights: LoRA or its kin, none that learns prompts.
        model_init_kwargs: arguments for from_pretrained, when the model is given by name.
        quantization_config: quantises the frozen weights of a model given by name.
        compute_metrics: `f(covey.trainer.evaluation.Evaluation)` → numbers by name, after each evaluation. A metric that is not the
            reward tells whether the policy got better or found a hole.
        tools: functions that the policy may call, with type hints and a docstring; see `covey.tools.tool` for terms of their own.
        rollout_func: `f(prompts, trainer)` → a dictionary of `prompt_ids`, `completion_ids`, `logprobs` and more, in place of
            the sampler; each prompt stands in `prompts` once per completion.
        environment_factory: makes an environment, whose methods are tools, for each completion; or several by name, chosen by
            the column `environment`.
        loss: a loss of your own, in place of the one that `args.loss_type` names: a function of
            `covey.update.terms.LossTerms` that returns one loss per token. `args.loss_type` says how they are summed.

    Overridden hooks of `transformers.Trainer`: `get_train_dataloader` (rows of a rollout), `get_batch_samples`,
    `compute_loss`, `training_step` (repeats what ran out of memory), `_get_grad_norm` (drops a step that is not finite),
    `evaluate` (samples and scores), `train` and `log` (the run's record), `floating_point_ops`, and those of
    `covey.trainer.checkpoint.saving`.

    Raises:
        ConfigError, DatasetError, LoadingError, RewardError, ToolError: before anything is sampled.
    """

    loss_is_scaled_for_ga = True

    args: GRPOConfig
    model: nn.Module
    processing_class: Any
    eval_dataset: Any
    engine: Engine

    def __init__(
        self,
        model: str | ModelConfig | nn.Module,
        reward_funcs: object = None,
        args: GRPOConfig | None = None,
        train_dataset: object = None,
        eval_dataset: object = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        reward_processing_classes: object = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
        peft_config: PeftConfig | None = None,
        model_init_kwargs: dict[str, object] | None = None,
        quantization_config: QuantizationConfigMixin | None = None,
        compute_metrics: Callable[[Evaluation], Mapping[str, float]] | None = None,
        loss: Loss | None = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        rollout_func: RolloutFunction | None = None,
        environment_factory: Factory | Mapping[str, Factory] | None = None,
        **others: object,
    ) -> None:
        other_names.check_hooks(type(self), GRPOTrainer)
        processing_class = other_names.checked_arguments(others, args, processing_class)
        source = ModelSource(model, processing_class, peft_config, model_init_kwargs, quantization_config)
        args = args or GRPOConfig(output_dir=f"{Path(source.name).name or 'model'}-GRPO")
        checks.check_own_loss(args, loss)
        self.agents = Agents.of(args, tools, environment_factory, rollout_func)
        rewards, weights = load_rewards(args, reward_funcs, reward_processing_classes, self.agents.rewards)
        data = self.agents.checked_data(args, rewards, train_dataset, eval_dataset)
        check_best_metric(args, rewards, data.evals, check_compute_metrics(compute_metrics))
        processing, policy, ending = load_policy_and_processor(args, source)
        tokenizer = tokenizer_of(processing)
        rehearsal.check(args, policy, tokenizer, optimizers[0], data.train is not None)
        reader = self.agents.prepare(args, prompt_reader(args, processing, policy), data, ending)
        unknown, closing = unknown_ids(tokenizer, policy, ending), self.agents.stop_strings
        self.sampling = make_sampling(args, ending, tokenizer.pad_token_id, unknown, closing)
        self.eval_sampling = make_eval_sampling(args, self.sampling, tokenizer.pad_token_id, closing)
        self.prompts = make_prompts(args, reader, data.train)
        eyes, has_signal = self.prompts.reader.eyes, signal_test(args, weights, rewards.bounds)
        can_see = partial(check_can_see, rewards, task_column=args.task_column, seen_sizes=seen_sizes(eyes))
        checks.check_ids(self.prompts.reader, data, self.prompts.kept, ending, can_see)
        hooks = {"compute_metrics": compute_metrics, "callbacks": callbacks, "optimizers": optimizers}
        rows = {"train_dataset": data.train, "eval_dataset": data.evals, "data_collator": list}  # stay rows
        super().__init__(model=policy, args=args, processing_class=processing, **rows, **hooks)
        self.model_accepts_loss_kwargs = True  # no division by the accumulation, in any release
        name, tasks, facts = source.name, rewards.tasks, self.agents.facts
        log = self.run_log = make_run_log(args, self.plan, weights, policy, name, data.train, tasks, facts)
        check_tasks(args, data.train, data.firsts.get("train_dataset"), log.tasks)
        draws = self.accelerator.autocast, policy, self.sampling
        self.engine = log.engine = make_engine(args, tokenizer, ending, *draws, log.say, eyes)
        curriculum = make_curriculum(args, self.prompts, data.train, log.task_column)
        self.scorer, growth = make_scorer(args, rewards, weights, eyes), make_growth(args, weights, self.plan)
        self.rollouts = Rollouts(has_signal, args.async_lag, curriculum, growth, make_replay(args, self.plan))
        self.nonfinite = NonfiniteGuard(args.max_nonfinite_steps, args.output_dir or ".", tokenizer.decode)
        self.updater = make_updater(
            args, policy, loss, self.accelerator, log, lambda: self._present_step, eyes
        )
        self.num_weights, self.rollout = sum(p.numel() for p in policy.parameters()), RolloutBuffer()
        self.settings = Settings(args, loss)
        self._add_callbacks()

    def __getattr__(self, name: str) -> Any:
        """Return what scripts for other trainers call by this name; asked for where there is no such attribute."""
        return other_names.read(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Assign an attribute; one that stands for a setting acts as the setting does."""
        if not other_names.assign(self, name, value):
            super().__setattr__(name, value)

    def heed_settings(self) -> None:
        """Let settings act that were changed after the trainer was made; inside a round of sampling they wait for its end."""
        if self.rollout.is_spent or not self.is_in_train:
            self.settings.heed(self)

    def _add_callbacks(self) -> None:
        """Add what stops, closes and records a run, in this order; Covey's display takes the place of transformers' own."""
        for printer in (DEFAULT_PROGRESS_CALLBACK, ProgressCallback, PrinterCallback):
            self.remove_callback(printer)
        if self.run_log.settings["display"] == "notebook" and self.is_world_process_zero():
            from covey.trainer.notebook import NotebookTable

            self.add_callback(NotebookTable())
        signals = StopSignals(self.is_world_process_zero(), self.args.world_size > 1)
        self.stop = StopAfterStep(signals, gather)
        for callback in (self.stop, EndOfEpoch(), _RunCallback(self)):
            self.add_callback(callback)

    # --- 1 sample, 2 score ------------------------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[list[Numbered]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, MicroBatch]], Tensor | None]:
        """Return the micro-batches of the next optimizer step; sample and score where the last rollout is used up."""
        if is_over(self.state):
            return [], None
        self.restore_rng_state()
        rows = [row for _ in range(num_batches) for row in next(epoch_iterator, ())]
        if self.rollout.is_spent:
            if not rows and not self.rollouts.queue:
                return [], None
            self.heed_settings()
            with same_end():
                rollout = self.rollouts.due(self, rows)
                rollout.make()
                scored = self.rollouts.finished(self, rollout)
            limit, oldest = self.args.max_staleness, None
            if limit is not None:
                oldest = self.state.global_step - limit
                self.run_log.note(stale_share(scored, oldest))
            samples = samples_of(scored, self.args.mask_truncated_completions, oldest)
            cut, accumulation = self.prompts.micro_batch_rows(), self.plan.accumulation
            batches = self.updater.build_micro_batches(samples, cut, accumulation)
            with self.run_log.timed("update"):
                batches = [batch.to(device) for batch in batches]
                self.updater.prepare(self.model, batches, accumulation)
                if self.state.global_step == 0:
                    self.updater.note_picture_effect(samples, self.plan.micro_batch)
            self.rollout.fill(batches, self.args.num_iterations)
        batches = self.rollout.next(num_batches)
        self.updater.begin_step(batches)
        self.run_log.begin_step()
        tokens = sum(int(b.mask.sum()) for b in batches)
        return [{"batch": b} for b in batches], torch.tensor(tokens, device=device)

    def with_logprobs(self, sampled: Sampled) -> Sampled:
        """Return what a rollout function sampled with the log-probabilities of the present policy."""
        size, device = self.args.per_device_train_batch_size, self.args.device
        with self.run_log.timed("update"):
            groups = self.updater.with_logprobs(self.model, sampled.groups, size, device)
        return replace(sampled, groups=groups)

    def kl_penalties(self, groups: Sequence[Group]) -> list[float]:
        """Return what the divergence to the reference takes off the reward of each completion."""
        samples = [Sample(g.prompt, c, 0.0, n) for n, g in enumerate(groups) for c in g.completions]
        size = self.args.per_device_train_batch_size
        return self.updater.kl_penalties(self.model, samples, size, self.args.device)

    def read_or_save(self, read: Callable[[], T]) -> T:
        """Return what `read` returns; where a row cannot be used in any process, save the steps so far and raise.

        Called between two optimizer steps, before anything is sampled. Collective: raises DatasetError in all processes.
        """
        try:
            rows, fault = read(), None
        except DatasetError as error:
            rows, fault = None, str(error)
        fault = first_fault(gather(fault))
        if fault is None:
            return cast(T, rows)
        step = self.state.global_step
        if self.is_in_train and step and (self.stop.saved_at != step or self.save_fault is not None):
            self._save_checkpoint(self.model_wrapped, None)
        saved = self.last_checkpoint() if self.is_in_train else None
        ways = f" The run is saved in {saved}: mend the row, and go on from there." if saved else ""
        raise DatasetError(f"{fault}{ways}")

    # --- 3 update -----------------------------------------------------------------------------------------------------

    def compute_loss(  # type: ignore[override]  # a micro-batch instead of a dictionary of tensors
        self,
        model: nn.Module,
        inputs: dict[str, MicroBatch],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, dict[str, MicroBatch]]:
        """Return the share of one micro-batch, or of a part of one, in the loss of its optimizer step.

        Args:
            inputs: `{"batch": MicroBatch}`.
            return_outputs: return the inputs too; there are no other outputs.
        """
        # Gradients are averaged over processes; the weights already hold the totals over all of them.
        loss = self.updater.loss(model, inputs["batch"]) * self.args.world_size
        return (loss, inputs) if return_outputs else loss

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Compute the gradient of a micro-batch; where memory runs out, once more from the start of the optimizer step."""
        step = super().training_step
        with self.run_log.timed("update"):
            loss = self.updater.train(model, lambda part: step(model, {"batch": part}, num_items_in_batch))
        self.updater.note_update(inputs["batch"])
        return loss

    def _get_grad_norm(
        self, model: nn.Module, grad_norm: float | Tensor | None = None
    ) -> float | Tensor | None:
        """Return the gradient's norm; a step whose gradient is not finite is not applied (`covey.trainer.nonfinite`)."""
        norm = super()._get_grad_norm(model, grad_norm)
        # float16 training meets infinite gradients while it looks for a scale, and skips such steps itself.
        is_good = self.nonfinite.passes(norm) or self.accelerator.scaler is not None
        self.run_log.note({"update/nonfinite_steps": Total(0 if is_good else 1 / self.args.world_size)})
        if not is_good:
            event = self.nonfinite.drop(model, self._present_step, self.updater.batches)
            self.run_log.event("warning", event, self._present_step)
            norm = 0.0
        self.run_log.step.add(
            {"grad_norm": Mean(float(norm)), "learning_rate": Mean(self._get_learning_rate())}
        )
        return norm

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        eval_dataset: object = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Sample and score every row of the evaluation dataset once, without a trace in the training run.

        Returns:
            The training metrics' names with a prefix: `eval_reward`, `eval_rewards/<name>/mean`, ...; 95 % intervals over
            prompts, pass@k, the same for each task, and what `compute_metrics` gave. `eval_loss` is minus `eval_reward`: what
            GRPO minimises, with nothing of the loss that training logs.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str) and isinstance(self.eval_dataset, dict) and dataset in self.eval_dataset:
            dataset = self.eval_dataset[dataset]
        dataset = as_eval_dataset(dataset)
        if dataset is None:
            raise DatasetError("There is nothing to evaluate on. Pass eval_dataset.")
        if not isinstance(dataset, dict):
            return self._evaluate_one(cast(Iterable[Mapping[str, object]], dataset), metric_key_prefix)
        results = [
            self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}") for name, part in dataset.items()
        ]
        return {name: value for result in results for name, value in result.items()}

    def _evaluate_one(self, dataset: Iterable[Mapping[str, object]], prefix: str) -> dict[str, float]:
        named, _ = self._sample_and_record(dataset, prefix, is_logged=True)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named

    def predict(
        self, test_dataset: object, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Sample and score every row once, as `evaluate` does.

        Returns:
            `predictions`: the reward of each completion, shape (rows, num_generations_eval), NaN where nothing scored it;
            no `label_ids`; `metrics`: those of `evaluate`.
        """
        rows = cast(Iterable[Mapping[str, object]], test_dataset)
        named, groups = self._sample_and_record(rows, metric_key_prefix, is_logged=False)
        rewards = np.array([[np.nan if t is None else t for t in s.totals] for s in groups])
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, named)
        return PredictionOutput(predictions=rewards, label_ids=None, metrics=named)

    def _sample_and_record(
        self, dataset: Iterable[Mapping[str, object]], prefix: str, is_logged: bool
    ) -> tuple[dict[str, float], list[ScoredGroup]]:
        """Return the metrics of an evaluation with their prefix, and its groups; the record has both."""
        start = time.perf_counter()
        self.rollouts.drain()
        self.heed_settings()
        rank, ranks, reader = self.args.process_index, self.args.world_size, self.prompts.reader
        prompts = self.read_or_save(lambda: own_prompts(readable(dataset), reader, rank, ranks))
        # Outside of training a step says nothing: the best weights may be back, or others were put in.
        self.engine.load(self.policy, self.state.global_step if self.is_in_train else None)
        with same_end(), self.agents.evaluating(self) as sample:
            own, sums = sample_and_score(
                partial(sample, self.engine),
                self.scorer,
                prompts,
                self.args.num_generations_eval or self.args.num_generations,
                replace(self.eval_sampling, step=(EVALUATION,)),
                self.args.per_device_eval_batch_size,
                self.state,
            )
        self.engine.sleep()
        # `compute_metrics` and callbacks on every process look at the whole evaluation.
        metrics, groups = joined(gather((sums, own)), self.args.task_column)
        metrics |= {"loss": -metrics["reward"]} if "reward" in metrics else {}
        try:
            metrics |= more_numbers(cast(Any, self.compute_metrics), groups, metrics.keys(), prefix)
        finally:  # Covey's own numbers are not lost where the user's fail
            seconds = time.perf_counter() - start
            count = sum(len(s.totals) for s in groups)
            metrics |= {"runtime": seconds, "samples_per_second": count / seconds}
            named = {f"{prefix}_{name}": value for name, value in metrics.items()}
            name = prefix.removeprefix("eval").removeprefix("_") or "eval"
            self.run_log.record_evaluation(name, self.state.global_step, metrics, groups)
            if is_logged:
                self.log(named)
        return named, groups

    get_high_entropy_mask = padded_formulas.high_entropy_mask
    get_off_policy_mask = staticmethod(padded_formulas.off_policy_mask)
    hyperparameter_search = other_names.refused("hyperparameter_search")
    evaluation_loop = other_names.refused("evaluation_loop")
    prediction_step = other_names.refused("prediction_step")
    get_eval_dataloader = other_names.refused("get_eval_dataloader")
    get_test_dataloader = other_names.refused("get_test_dataloader")

    def create_model_card(  # type: ignore[override]  # the order of other GRPO trainers; all names of the base class are taken
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
        **others: Any,
    ) -> None:
        """Write README.md into output_dir: the base model, the data set, the rewards and how to train it again.

        Args:
            others: what `transformers.Trainer.create_model_card` takes: finetuned_from, language, license, dataset, ...
        """
        if self.is_world_process_zero():
            base = others.pop("finetuned_from", None) or self.run_log.facts["model"].get("name")
            card = model_card(
                self.args, list(self.run_log.rewards), model_name, base, dataset_name, tags, others
            )
            Path(self.args.output_dir or ".", "README.md").write_text(card, encoding="utf-8")

    # --- a run, from its first step to its end ------------------------------------------------------------------------

    @any_encoding()
    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: object = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train; see `transformers.Trainer.train`.

        Ctrl-C and SIGTERM end the step, save a checkpoint and exit; see `covey.trainer.stop_signals`.

        Args:
            resume_from_checkpoint: True or 'last': go on from the last whole checkpoint in output_dir. 'auto': the same, or
                start where there is none. A folder: that one. Default: `args.resume_from_checkpoint`.

        Raises:
            CheckpointError: the checkpoint that was asked for is damaged, or none is whole.
            ConfigError: another run goes on in output_dir, or a setting was changed that cannot act any more.
            RunStopped: a signal stopped the run; it ends the program unless it is caught.
        """
        if self.train_dataset is None:
            raise DatasetError("There is nothing to train on. Pass train_dataset.")
        self.heed_settings()
        asked = self.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint
        checked_reward_states(self.scorer.rewards)
        folder, is_first = Path(self.args.output_dir or "."), self.is_world_process_zero()
        with only_run(folder, is_first, gather):
            return self._train(self.choose_checkpoint(asked), trial, ignore_keys_for_eval)

    def _train(self, checkpoint: str | None, trial: object, ignore_keys: list[str] | None) -> TrainOutput:
        """Train, and close the run's record whatever the end."""
        self.rollout, self.run_log.run = RolloutBuffer(), Ledger()
        self.rollouts.begin(self)
        self.updater.bonus = make_entropy_bonus(self.args)
        try:
            with self.stop.signals.listening(), ends_with_others(partial(self.run_log.close, "failed")):
                result = super().train(checkpoint, trial, ignore_keys)
        except KeyboardInterrupt:
            self.run_log.close("interrupted", "Stopped from the keyboard.")
            raise
        except BaseException as error:
            self.run_log.close("failed", str(error), traceback=traceback.format_exc())
            raise
        finally:
            self.rollout.end()
            self.rollouts.close()
            try:
                self.agents.close()
            finally:  # whatever an environment raises, no server is left behind
                self.engine.close()
        signal = self.stop.stopped_by or self.stop.signals.received
        if signal:
            self._leave(signal)
        self.run_log.close("finished")
        return result._replace(training_loss=result.metrics["train_loss"])

    def remark(self, message: str) -> None:
        warn(message)
        self.run_log.event("warning", message, self._present_step)

    def _leave(self, signal: int) -> NoReturn:
        """Close the run that a signal stopped, and raise `RunStopped`."""
        saved = self.last_checkpoint()
        message = stop_message(
            signal,
            self.state.global_step,
            self.state.max_steps,
            None if saved is None else str(saved),
            self.save_fault,
            self.resume_command,
        )
        self.run_log.close("finished" if is_over(self.state) else "interrupted", message)
        if self.is_world_process_zero():
            show(f"\n{message}", sys.stderr, flush=True)
        self.stop.signals.call_previous_handler()
        raise RunStopped(signal, message)

    def end_step(self) -> None:
        """Record an optimizer step and move the reference. Called once per step, when it is done and counted."""
        self.run_log.note({"memory/peak_mb": Largest.of([peak_memory_mb(self.args.device)])})
        step = self.state.global_step
        if self.args.sync_ref_model and step % self.args.ref_model_sync_steps == 0:
            assert self.updater.reference is not None, "checked by GRPOConfig"
            self.updater.reference.move_towards(self.model, self.args.ref_model_mixup_alpha)
        metrics = self.run_log.reduce_step()
        self.state.num_input_tokens_seen += int(metrics["num_tokens"])
        metrics["num_tokens"] = self.state.num_input_tokens_seen
        self.run_log.record_step(step, metrics)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the metrics that came in since the last training log; the last entry has those of the steps not logged yet."""
        if "loss" in logs:
            tokens = self.state.num_input_tokens_seen
            logs = {**logs, **self.run_log.reduce_log(), "num_tokens": tokens}
        if "train_loss" in logs:  # the Trainer's own is that of the steps since the last start
            tail = self.run_log.reduce_tail()
            if tail:
                tail["num_tokens"] = self.state.num_input_tokens_seen
            logs |= {**tail, **self.run_log.reduce_run()}
        logs = {clean(name): value for name, value in logs.items()}  # loggers take no other letters
        super().log(logs, start_time)
        self.run_log.show_log(logs, self.state.global_step)
        if "loss" in logs:
            self.run_log.show_completions(self.callback_handler.callbacks)

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        self.rollouts.drain()  # what was sampled ahead goes into the checkpoint
        super()._save_checkpoint(model, trial)

    def run_state(self) -> RunState:
        """Return what changes while a run goes on, beside model, optimizer and scheduler."""
        return RunState(
            rollout=self.rollout,
            position=self.state.global_step * self.plan.accumulation % self.plan.micro_batches_per_rollout,
            ledgers={"log": self.run_log.log, "step": self.run_log.step, "run": self.run_log.run},
            bonus=self.updater.bonus,
            nonfinite=self.nonfinite,
            rewards=self.scorer.rewards,
            reference=self.updater.reference if self.args.sync_ref_model else None,
            clock=self.prompts.reader.clock,
            settings={name: self.settings.known[name] for name in OF_A_ROUND},
            dataset=dataset_digest(self.train_dataset),
            queue=self.rollouts.queue,
            next_rollout=self.rollouts.ahead(self).first,
            ranks=self.args.world_size,
            multipliers=self.rollouts.multipliers,
            pass_rates=None if self.rollouts.curriculum is None else self.rollouts.curriculum.memory,
            replay=None if self.rollouts.replay is None else self.rollouts.replay.buffer,
            eyes="" if (eyes := self.prompts.reader.eyes) is None else eyes.name,
        )

    def relaxed(self) -> list[str]:
        """Return the settings under which the run cannot be resumed to the bit."""
        return ["async_in_flight"] if self.args.async_in_flight else []

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Build the loader of whole rollouts, one item per micro-batch; the same on every process."""
        rows: Any = self.train_dataset
        rounds = self.args.dynamic_sampling_rounds if self.args.dynamic_sampling else 0
        if self.rollouts.curriculum is not None:  # it reads the rows that it draws: the loader counts places
            rows, rounds = [{}] * len(rows), 0
        seed = self.args.seed if self.args.shuffle_dataset else None
        workers = loader_workers(self.args, is_map_style(self.train_dataset))
        ahead = partial(self.rollouts.ahead, self)
        return make_loader(rows, self.prompts, rounds, seed, ahead, workers)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return 6 per weight and token (arXiv:2001.08361, section 2.1)."""
        return 6 * inputs["batch"].num_tokens * self.num_weights

    @property
    def plan(self) -> Plan:
        """The plan: what the batch settings mean."""
        return self.prompts.plan

    @property
    def policy(self) -> nn.Module:
        """The policy, without what wraps it for training."""
        return cast(nn.Module, self.accelerator.unwrap_model(self.model_wrapped))

    @property
    def _present_step(self) -> int:
        """The optimizer step that is being taken, from 1 on."""
        return self.state.global_step + 1


class _RunCallback(TrainerCallback):
    """Tells the trainer when a run begins and when a step is over, in the Trainer's own order of events."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.trainer.begin_run()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.trainer.end_step()
