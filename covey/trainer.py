"""GRPOTrainer: the three steps on transformers.Trainer's hooks.

    get_batch_samples   once per optimizer step:  engine.generate → scorer.score → micro-batches    1 sample, 2 score
    compute_loss        once per micro-batch:     forward → objective                               3 update

The Trainer owns the loop, so callbacks, schedulers, optimizers, loggers and checkpoints are the ones people know.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from covey import loading
from covey.causal import context_length
from covey.checkpoint import load_state, save_state
from covey.config import GRPOConfig
from covey.errors import ConfigError, CoveyWarning, DatasetError, DivergedError, RewardError
from covey.evaluation import sample_and_score
from covey.groups import Group, Prompt, ScoredGroup
from covey.metrics import Ledger, Mean, Metric, Total, merge
from covey.plan import Plan, make_plan, warn_if_cycled
from covey.rewards.batch import RESERVED
from covey.rewards.reward import Reward
from covey.runs.completions import CompletionLog
from covey.sample.chat import decode_text, stop_ids
from covey.sample.engine import in_order
from covey.sample.loader import (
    WindowSampler,
    WindowStream,
    column_names,
    is_map_style,
    map_loader,
    stream_loader,
)
from covey.sample.native import NativeEngine
from covey.sample.prompts import Overlong, PromptReader, seed_keys
from covey.sample.settings import GenerationOptions, Sampling, generation_options
from covey.score.advantages import Scale, estimator
from covey.score.scorer import Scorer, completion_metrics
from covey.score.signals import Signals
from covey.update.assemble import assemble
from covey.update.batch import MicroBatch, samples_of
from covey.update.forward import Forward
from covey.update.objective import Clip, masked_mean, objective
from covey.update.reference import Reference
from covey.update.window import Window

T = TypeVar("T")

TRAINING, EVALUATION = 0, 1
"""First part of the step that random numbers depend on: evaluation has numbers of its own."""

PHASES = ("sample", "score", "update")

LOSS_STARTS_AT_ZERO = (
    "The loss starts near 0, and that is right: before the first update every ratio is 1 and the advantages of a group "
    "add up to 0. Look at `reward` and `grad_norm`."
)


class GRPOTrainer(Trainer):
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
    ) -> None:
        args = args or GRPOConfig(output_dir=f"{Path(loading.model_name(model)).name or 'model'}-GRPO")
        rewards = loading.load_rewards(reward_funcs, reward_processing_classes, args.device)
        weights = _weights(rewards, args.reward_weights)
        _check_columns(rewards, train_dataset, "train_dataset")
        for name, dataset in _named_datasets(eval_dataset):
            _check_columns(rewards, dataset, name)
        tokenizer = loading.load_tokenizer(processing_class, model, args.trust_remote_code)
        policy = loading.load_policy(
            model,
            _one_source(model_init_kwargs, args.model_init_kwargs),
            trust_remote_code=args.trust_remote_code,
            quantization_config=quantization_config,
            strict_hardware=args.strict_hardware,
        )
        loading.check_causal(policy)
        policy = loading.with_adapter(policy, peft_config, args.seed)
        if args.disable_dropout:
            loading.switch_off_dropout(policy)

        options = generation_options(_dict(args.generation_kwargs), vars(args))
        ending = stop_ids(tokenizer, loading.generation_config(policy), options.eos_token_id)
        self.sampling = _sampling(args, options, ending, tokenizer)
        self.reader = PromptReader(
            tokenizer,
            _dict(args.chat_template_kwargs),
            args.max_prompt_length,
            cast(Overlong, args.overlong_prompts),
            context_length(policy),
            args.max_completion_length,
        )
        self.kept_rows = _kept_rows(train_dataset, self.reader)
        self.plan = _plan(args, self.kept_rows, train_dataset is not None)
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
        _let_gradients_through(policy)
        self.forward = Forward(policy, args.temperature)
        unsaid = frozenset(i for i in (*ending, tokenizer.pad_token_id) if i is not None)
        self.engine = NativeEngine(
            lambda ids: decode_text(tokenizer, ids, unsaid, args.keep_special_tokens),
            self.accelerator.autocast,
        )
        estimate = estimator(
            args.multi_objective_aggregation, cast(Scale, args.scale_rewards), list(weights.values())
        )
        self.scorer = Scorer(rewards, weights, estimate, self._gather, args.process_index)
        high = args.epsilon if args.epsilon_high is None else args.epsilon_high
        self.clip = Clip(args.epsilon, high, args.delta)
        self.reference = Reference(self.model) if args.beta else None
        if args.sync_ref_model:
            self.add_callback(SyncReference(self))
        self.num_weights = sum(p.numel() for p in policy.parameters())
        self.window, self.ledger, self.signals = Window(), Ledger(), Signals()
        self.completion_log: CompletionLog | None = None
        self.nonfinite_steps = 0
        self._step_batches: list[MicroBatch] = []

    # --- 1 sample, 2 score ------------------------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, MicroBatch]], Tensor | None]:
        """The micro-batches of the next optimizer step; samples and scores where the last round is used up."""
        rows = [row for _ in range(num_batches) for row in next(epoch_iterator, ())]
        if self.window.is_spent:
            if not rows:
                return [], None
            scored = self._sample_and_score(rows)
            self.window.open(self._micro_batches(scored, device), self.args.num_iterations)
        self._step_batches = self.window.next(num_batches)
        self.ledger.add({f"time/{phase}": Mean(0.0, 1.0) for phase in PHASES})
        tokens = sum(int(b.mask.sum()) for b in self._step_batches)
        return [{"batch": b} for b in self._step_batches], torch.tensor(tokens, device=device)

    def _sample_and_score(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> list[ScoredGroup]:
        """A window's scored groups: this process's own, or all of them where groups straddle processes."""
        keys = seed_keys([number for number, _ in rows])
        prompts = [
            self.reader.read(row, number, key)
            for position, ((number, row), key) in enumerate(zip(rows, keys, strict=True))
            if self.plan.owner(position) == self.args.process_index
        ]
        rounds = self.plan.window // self.plan.steps_per_generation
        scored = [s for part in _parts(prompts, rounds) for s in self._score(self._sample(part))]
        return scored if self.plan.keeps_groups_whole else self._exchanged(scored, len(rows))

    def _sample(self, prompts: Sequence[Prompt]) -> list[Group]:
        window = self.state.global_step * self.plan.accumulation // self.plan.window_passes
        settings = replace(self.sampling, step=(TRAINING, window))
        with self._timed("sample"):
            self.engine.load(self.accelerator.unwrap_model(self.model_wrapped))
            return in_order(prompts, self.engine.generate(prompts, self.plan.group_size, settings))

    def _score(self, groups: list[Group]) -> list[ScoredGroup]:
        with self._timed("score"):
            scored, metrics = self.scorer.score(groups, self.state)
        self.ledger.add(merge(metrics, completion_metrics(groups), _token_metrics(groups)))
        self.signals.check(groups, scored, self.state.global_step)
        self._record(scored)
        return scored

    def _exchanged(self, scored: list[ScoredGroup], count: int) -> list[ScoredGroup]:
        """Every process's groups in the order of the window."""
        of_rank = [iter(part) for part in self._gather(scored)]
        return [next(of_rank[self.plan.owner(position)]) for position in range(count)]

    def _record(self, scored: list[ScoredGroup]) -> None:
        if not self.args.log_completions:
            return
        everything = [s for part in self._gather(scored) for s in part]
        if self.completion_log is not None:
            self.completion_log.write(self.state.global_step + 1, everything)

    # --- 3 update -----------------------------------------------------------------------------------------------------

    def compute_loss(  # type: ignore[override]  # a micro-batch instead of a dictionary of tensors
        self,
        model: nn.Module,
        inputs: dict[str, MicroBatch],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """The share of one micro-batch in the loss of its optimizer step."""
        batch = inputs["batch"]
        new, entropy = self._logprobs(model, batch)
        if batch.old is None:
            batch.old = new.detach()
        loss, metrics = objective(
            new,
            batch.old,
            batch.advantages[batch.row],
            batch.weights[batch.row],
            batch.mask,
            self.clip,
            batch.reference,
            self.args.beta,
            self.args.use_bias_correction_kl,
        )
        metrics["entropy"] = masked_mean(entropy, batch.mask)
        metrics["advantages/mean_abs"] = Mean.of(batch.advantages.abs().tolist())
        self.ledger.add(metrics)
        # Gradients are averaged over processes; the weights already hold the totals over all of them.
        return loss * self.args.world_size

    def _micro_batches(self, scored: list[ScoredGroup], device: torch.device) -> list[MicroBatch]:
        """This process's micro-batches of a window, with the log-probabilities that the objective compares with."""
        samples = samples_of(scored, self.args.mask_truncated_completions)
        cut = [[(i, samples[i]) for i in self._rows_of(number)] for number in range(self.plan.window)]
        args = self.args
        batches = assemble(
            cut, self.plan.accumulation, args.loss_type, args.max_completion_length, self._gather
        )
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
        for number, batch in enumerate(batches):
            if number >= self.plan.accumulation:
                batch.old = self._logprobs(self.model, batch)[0]
            if self.reference is not None:
                with self.reference.lent_to(self.model) as reference:
                    batch.reference = self._logprobs(reference, batch)[0]
        return batches

    def _logprobs(self, model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        with self.accelerator.autocast():
            return self.forward(model, batch)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        with self._timed("update"), self.forward.layout(inputs["batch"]):
            return super().training_step(model, inputs, *args, **kwargs)

    # --- numbers that are not finite ----------------------------------------------------------------------------------

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Drops the gradients of a step that is not finite, so that the optimizer leaves the weights alone."""
        norm = super()._get_grad_norm(model, grad_norm)
        # float16 training meets infinite gradients while it looks for a scale, and skips such steps itself.
        is_good = bool(torch.isfinite(torch.as_tensor(norm))) or self.accelerator.scaler is not None
        self.ledger.add({"update/nonfinite_steps": Total(0 if is_good else 1 / self.args.world_size)})
        if is_good:
            self.nonfinite_steps = 0
            return norm
        for parameter in model.parameters():
            parameter.grad = None
        self._report_nonfinite()
        return 0.0

    def _report_nonfinite(self) -> None:
        self.nonfinite_steps += 1
        event = (
            f"Step {self.state.global_step + 1}: the gradient is not finite; the step is not applied "
            f"({self.nonfinite_steps} in a row). {self._suspect()}"
        )
        warnings.warn(event, CoveyWarning, stacklevel=2)
        if self.nonfinite_steps >= self.args.max_nonfinite_steps:
            last = get_last_checkpoint(self._output_dir) if Path(self._output_dir).is_dir() else None
            raise DivergedError(
                f"{event} The run stops at max_nonfinite_steps={self.args.max_nonfinite_steps}. The weights are those of the "
                f"last good step; the last checkpoint is {last or 'none: nothing was saved yet'}. Lower the learning rate, "
                "or look at this completion."
            )

    def _suspect(self) -> str:
        """The first completion of the step whose log-probabilities are not finite, or the first of all."""
        for batch in self._step_batches:
            bad = batch.row[~torch.isfinite(batch.old)] if batch.old is not None else batch.row[:0]
            if len(bad):
                return f"Log-probabilities are not finite for {self._shown(batch, int(bad[0]))}"
        return f"Its first completion is {self._shown(self._step_batches[0], 0)}"

    def _shown(self, batch: MicroBatch, row: int) -> str:
        prompt, completion = (
            self.processing_class.decode(ids) for ids in (batch.prompts[row], batch.completions[row])
        )
        return f"completion {completion[:300]!r} of prompt {prompt[:300]!r}."

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Sample and score every row of the evaluation dataset once; no loss, and no trace in the training run.

        Returns:
            The training metrics' names with a prefix: `eval_reward`, `eval_rewards/<name>/mean`, ...
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
        metrics, count = self._evaluated(dataset)
        seconds = time.perf_counter() - start
        metrics |= {"runtime": seconds, "samples_per_second": count / seconds}
        named = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(named)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named

    def _evaluated(self, dataset: Any) -> tuple[dict[str, float], int]:
        """Metrics over all processes; each takes every n-th row."""
        prompts = [
            self.reader.read(row, number, (number, 0))
            for number, row in enumerate(dataset)
            if number % self.args.world_size == self.args.process_index
        ]
        self.engine.load(self.accelerator.unwrap_model(self.model_wrapped))
        groups, metrics = sample_and_score(
            self.engine,
            self.scorer,
            prompts,
            self.args.num_generations_eval or self.args.num_generations,
            replace(self.sampling, step=(EVALUATION,)),
            self.args.per_device_eval_batch_size,
            self.state,
        )
        parts = self._gather((metrics, sum(len(g.completions) for g in groups)))
        return Ledger().reduce(m for m, _ in parts), sum(n for _, n in parts)

    # --- the Trainer's other hooks ------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train; see `transformers.Trainer.train`. `resume_from_checkpoint=True` takes the last one in output_dir."""
        if self.train_dataset is None:
            raise DatasetError("There is nothing to train on. Pass train_dataset.")
        if self.is_world_process_zero():
            print(f"Plan\n{self.plan}\n{LOSS_STARTS_AT_ZERO}")
        self.window, self.nonfinite_steps = Window(), 0
        if not resume_from_checkpoint:
            self._open_completion_log(0)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """Rows of whole windows, one item per micro-batch; the same on every process."""
        plan = self.plan
        if self.kept_rows is None:
            return stream_loader(
                WindowStream(
                    self.train_dataset, plan.prompts_per_window, plan.window_passes, self.reader.is_kept
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
        )
        return map_loader(self.train_dataset, sampler)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the metrics that came in since the last training log."""
        if "loss" in logs:
            logs = {**logs, **self.ledger.reduce(self._gather(self.ledger.drain()))}
            self.state.num_input_tokens_seen += int(logs["num_tokens"])
            logs["num_tokens"] = self.state.num_input_tokens_seen
            logs["step_time"] = sum(logs[f"time/{phase}"] for phase in PHASES)
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """6 per weight and token (arXiv:2001.08361, section 2.1)."""
        return 6 * inputs["batch"].num_tokens * self.num_weights

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        moved = self.reference if self.args.sync_ref_model and self.args.should_save else None
        save_state(folder, self.args.process_index, self.window, self.ledger, moved)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Called while a checkpoint is loaded, with the state of the run already known."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        position = self.state.global_step * self.plan.accumulation % self.plan.window_passes
        moved = self.reference if self.args.sync_ref_model else None
        load_state(checkpoint, self.args.process_index, position, self.window, self.ledger, moved)
        self._open_completion_log(self.state.global_step)
        for batch in self.window.batches:
            vars(batch).update(vars(batch.to(self.args.device)))

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _open_completion_log(self, resumed_at: int) -> None:
        if self.args.log_completions and self.is_world_process_zero():
            path = Path(self._output_dir) / "completions.jsonl"
            self.completion_log = CompletionLog(path, resumed_at)

    @property
    def _output_dir(self) -> str:
        assert self.args.output_dir is not None, "TrainingArguments fills it"
        return self.args.output_dir

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
            self.ledger.add({f"time/{phase}": Mean(time.perf_counter() - start, 0.0)})


class SyncReference(TrainerCallback):
    """Moves the reference towards the policy every so many optimizer steps."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % args.ref_model_sync_steps == 0:
            assert self.trainer.reference is not None, "checked by GRPOConfig"
            self.trainer.reference.move_towards(self.trainer.model, args.ref_model_mixup_alpha)


def _weights(rewards: Sequence[Reward], given: Sequence[float] | None) -> dict[str, float]:
    if given is not None and len(given) != len(rewards):
        raise ConfigError(
            f"reward_weights has {len(given)} weights for {len(rewards)} rewards ({', '.join(r.name for r in rewards)}). "
            "Give one per reward."
        )
    return {r.name: float(w) for r, w in zip(rewards, given or [1.0] * len(rewards), strict=True)}


def _check_columns(rewards: Sequence[Reward], dataset: Any, name: str) -> None:
    """Every required argument of a reward is a column of the dataset; a stream may not say before it is read."""
    columns = None if dataset is None else column_names(dataset)
    if columns is None:
        return
    for reward in rewards:
        missing = reward.missing_columns(columns)
        if missing:
            raise RewardError(
                f"Reward {reward.name!r} needs {', '.join(map(repr, missing))}, and {name} has no such column; it has "
                f"{', '.join(map(repr, columns))}. Add the column, or give the argument a default."
            )
    taken = sorted(set(columns) & set(RESERVED))
    if taken:
        warnings.warn(
            f"{name} has columns named {', '.join(map(repr, taken))}, which are names of arguments that Covey fills itself: "
            "rewards do not see these columns. Rename them.",
            CoveyWarning,
            stacklevel=4,
        )


def _named_datasets(dataset: Any) -> list[tuple[str, Any]]:
    if isinstance(dataset, dict):
        return [(f"eval_dataset[{name!r}]", part) for name, part in dataset.items()]
    return [("eval_dataset", dataset)]


def _one_source(argument: dict[str, Any] | None, setting: Any) -> dict[str, Any] | None:
    if argument and setting:
        raise ConfigError("model_init_kwargs is given twice: to GRPOTrainer and in GRPOConfig. Give it once.")
    return argument or setting


def _sampling(
    args: GRPOConfig, options: GenerationOptions, ending: tuple[int, ...], tokenizer: Any
) -> Sampling:
    padding = getattr(tokenizer, "pad_token_id", None)
    return Sampling(
        max_new_tokens=args.max_completion_length,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p or 0.0,
        repetition_penalty=args.repetition_penalty,
        min_new_tokens=options.min_new_tokens,
        suppress_tokens=options.suppress_tokens,
        padding_id=None if padding in ending else padding,
        begin_suppress_tokens=options.begin_suppress_tokens,
        bad_words_ids=options.bad_words_ids,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        stop_ids=ending,
        stop_strings=options.stop_strings,
        seed=args.seed,
    )


def _kept_rows(dataset: Any, reader: PromptReader) -> list[int] | None:
    """Numbers of the rows that may be drawn; None for a stream."""
    if dataset is None or not is_map_style(dataset):
        return None
    if reader.max_length is None or reader.overlong == "truncate":
        return list(range(len(dataset)))
    return [number for number in range(len(dataset)) if reader.is_kept(dataset[number], number)]


def _plan(args: GRPOConfig, kept_rows: list[int] | None, has_data: bool) -> Plan:
    return make_plan(
        group_size=args.num_generations,
        micro_batch=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        ranks=args.world_size,
        steps_per_generation=args.steps_per_generation,
        generation_batch_size=args.generation_batch_size,
        iterations=args.num_iterations,
        num_prompts=None if kept_rows is None else len(kept_rows),
        max_steps=args.max_steps if has_data else max(args.max_steps, 1),
        epochs=args.num_train_epochs,
    )


def _dict(setting: Any) -> dict[str, Any]:
    """A setting that may have come as JSON, which GRPOConfig has read."""
    assert setting is None or isinstance(setting, dict), setting
    return setting or {}


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


def _let_gradients_through(policy: Any) -> None:
    """Reentrant checkpointing drops the gradient where no input has one; with frozen embeddings none has."""
    if any(not p.requires_grad for p in policy.parameters()) and hasattr(
        policy, "enable_input_require_grads"
    ):
        policy.enable_input_require_grads()
