"""Settings and arguments of a trainer → the parts that it works with, one function per part; settings are read here, once."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils.quantization_config import QuantizationConfigMixin

from covey.config import GRPOConfig, ModelConfig
from covey.config.allocation_settings import growing_first
from covey.config.choices import LOSS_TYPES
from covey.config.sampling_names import lacks_policy_logprobs, sampler_options
from covey.config.threads import settle_threads
from covey.config.vision_settings import check_eyes_needed
from covey.errors import ConfigError, LoadingError, RewardError, warn
from covey.metrics import Total
from covey.models import adapters, fitness, loading
from covey.models.balancing import balancing_coef
from covey.models.inspect import context_length, innermost
from covey.plan import Plan, make_plan, warn_if_cycled
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture, as_rewards
from covey.rewards.neural.reward_model import RewardModel, load_reward_model
from covey.runs.record.environment import dataset_facts, model_facts
from covey.sample.chat import decode_text, stop_ids
from covey.sample.engine import Engine
from covey.sample.native.engine import NativeEngine
from covey.sample.prompts import PromptReader
from covey.sample.sampling import Sampling, generation_options
from covey.score.credit import TurnCredit
from covey.score.estimators import estimator, growing_estimator
from covey.score.filters import carries_signal, successes
from covey.score.group_growth import GroupGrowth
from covey.score.score_metrics import task_metrics
from covey.score.scorer import Scorer
from covey.score.shaping import Shaping
from covey.trainer import checks
from covey.trainer.data import ShardedPrompts, kept_rows
from covey.trainer.distributed import gather
from covey.trainer.run_log import RunLog
from covey.trainer.sampled import joined_starts
from covey.trainer.task_budgets import make_quota, warn_of_small_tasks
from covey.types import Prompt, Scale, ScoredGroup
from covey.update.entropy import Adaptation, EntropyBonus
from covey.update.forward import Forward
from covey.update.losses import Cispo, Clip, ClipCov, Clipped, Dppo, Gmpo, KlCov, Luspo, Sapo, Vespo
from covey.update.objective import Objective
from covey.update.oom_retry import OomRetry, TokenBudget
from covey.update.reduction import Reduction
from covey.update.reference import Reference
from covey.update.sampler_correction import SamplerCorrection
from covey.update.task_weights import Tasks
from covey.update.terms import Loss
from covey.update.token_selection import TokenSelection
from covey.update.updater import KlPenalty, Updater
from covey.vision.eyes import ProcessorEyes, blindness, eyes_of, with_pixel_limits
from covey.vision.features import freeze
from covey.vision.pictures import PictureLimits
from covey.vision.sight import Eyes

if TYPE_CHECKING:
    from peft import PeftConfig


@dataclass(frozen=True)
class ModelSource:
    """The policy that a trainer is given, and what belongs to it; see `covey.GRPOTrainer`."""

    model: str | ModelConfig | nn.Module
    processing_class: PreTrainedTokenizerBase | ProcessorMixin | None
    peft_config: PeftConfig | None
    model_init_kwargs: Mapping[str, object] | None
    quantization_config: QuantizationConfigMixin | None

    @property
    def name(self) -> str:
        return loading.model_name(self.model)


def load_rewards(
    args: GRPOConfig, functions: object, tokenizers: object, of_environments: Sequence[Reward] = ()
) -> tuple[Mixture, Mapping[str, float]]:
    """Return the rewards and their weights by name.

    Args:
        of_environments: rewards that stand behind the functions. `reward_weights` does not count them.

    Raises:
        RewardError: there are none, or they cannot be used.
    """
    if functions is None and of_environments:
        own = Mixture(*of_environments)
        return own, checks.reward_weights(args, own)
    if functions is None:
        raise RewardError(
            "reward_funcs is missing: GRPO learns from rewards. Give a function, a reward model's name, a list of them, or a Mixture."
        )
    rewards = as_mixture(functions, tokenizers, args.device, args.trust_remote_code).extended(of_environments)
    return rewards, checks.reward_weights(args, rewards)


def as_mixture(
    functions: object,
    processing_classes: object = None,
    device: torch.device | str | None = None,
    trust_remote_code: bool = False,
) -> Mixture:
    """Build a mixture of rewards: functions as they are, names and modules as reward models with their own tokenizer.

    Args:
        functions: one reward or a list of them.
        processing_classes: tokenizers of the reward models: that of the only one, or a list with one per reward (None
            where it is not needed).
        device: where reward models compute.
        trust_remote_code: run code that comes with a reward model given by name.

    Raises:
        RewardError: no reward, or something that is none.
        LoadingError: a list of tokenizers of the wrong length, or a model that is no trained reward model.
    """
    listed = list(functions) if isinstance(functions, list | tuple) else [functions]
    models = sum(isinstance(function, str | nn.Module) for function in listed)
    if isinstance(processing_classes, list | tuple):
        tokenizers = list(processing_classes)
    else:  # for the one reward model that there is
        tokenizers = [processing_classes] * (
            1 if processing_classes is not None and models > 1 else len(listed)
        )
    if len(tokenizers) != len(listed):
        raise LoadingError(
            f"reward_processing_classes: {len(tokenizers)} for {len(listed)} rewards; the numbers must match. Give a list with one "
            "per reward, None for functions and where a reward model has its own."
        )
    rewards: list[Any] = []
    for function, tokenizer in zip(listed, tokenizers, strict=True):
        if isinstance(function, str):
            function = load_reward_model(
                function, tokenizer, device=device, trust_remote_code=trust_remote_code
            )
        elif isinstance(function, nn.Module):
            sees = isinstance(tokenizer, ProcessorMixin)
            own = tokenizer if sees else loading.load_tokenizer(tokenizer, function, trust_remote_code)
            function = RewardModel(function, own, device=device)
        rewards.append(function)
    return as_rewards(rewards)


def load_policy_and_processor(
    args: GRPOConfig, source: ModelSource
) -> tuple[PreTrainedTokenizerBase | ProcessorMixin, nn.Module, tuple[int, ...]]:
    """Load the tokenizer, or the processor of a policy that sees; the policy with its adapter; and the ids that end a completion.

    Raises:
        ConfigError: `model_init_kwargs` is given to the trainer and in the settings.
        LoadingError: a part cannot be used as asked.
    """
    if source.model_init_kwargs and args.model_init_kwargs:
        raise ConfigError("model_init_kwargs is given twice: to GRPOTrainer and in GRPOConfig. Give it once.")
    processing = loading.load_processing_class(source.processing_class, source.model, args.trust_remote_code)
    tokenizer = loading.tokenizer_of(processing)
    trial = make_sampling(
        args, (), tokenizer.pad_token_id
    )  # wrong options are found before weights are loaded
    make_eval_sampling(args, trial, tokenizer.pad_token_id)
    policy = loading.load_policy(
        source.model,
        {**(source.model_init_kwargs or as_dict(args.model_init_kwargs))},
        trust_remote_code=args.trust_remote_code,
        quantization_config=source.quantization_config,
        strict_hardware=args.strict_hardware,
    )
    fitness.check_causal(policy)
    fitness.check_tokenizer(tokenizer, policy)
    policy = adapters.with_adapter(policy, source.peft_config, args.seed, args.lora_vision)
    if args.disable_dropout:
        loading.switch_off_dropout(policy)
    processing = with_eyes_set(args, processing, policy)
    if args.freeze_vision_tower:
        has_projector = freeze(cast(PreTrainedModel, innermost(policy)), args.freeze_projector)
        if args.freeze_projector and not has_projector:
            warn(
                "freeze_projector has no effect: the projector of this policy is part of the tower, which freeze_vision_tower freezes."
            )
    more_ends = sampler_options(args)[0].get("eos_token_id")
    return (
        processing,
        policy,
        tuple(stop_ids(tokenizer, getattr(policy, "generation_config", None), more_ends)),
    )


def with_eyes_set(
    args: GRPOConfig, processing: PreTrainedTokenizerBase | ProcessorMixin, policy: nn.Module | None
) -> PreTrainedTokenizerBase | ProcessorMixin:
    """Return the processor with the settings of pictures, and what reads text alone as it is.

    Raises:
        ConfigError: settings of pictures do nothing here, or the processor has no such limits.
    """
    sees = args.use_images and policy is not None and fitness.has_eyes(policy, processing)
    check_eyes_needed(args, sees)
    return with_pixel_limits(processing, args.min_pixels, args.max_pixels) if sees else processing


def make_eyes(
    args: GRPOConfig, processing: PreTrainedTokenizerBase | ProcessorMixin, policy: nn.Module
) -> ProcessorEyes | None:
    """Build what reads pictures; None where the policy is shown none."""
    root = None if args.image_root is None else Path(args.image_root)
    limits = PictureLimits(root, args.max_image_megapixels, urls=args.allow_image_urls)
    return eyes_of(policy, processing, limits) if args.use_images else None


def why_blind(args: GRPOConfig, eyes: ProcessorEyes | None, policy: nn.Module | None) -> str:
    """Return why pictures cannot be shown to the policy; empty where they can."""
    if eyes is None or args.engine == "native":
        return blindness(eyes, policy)
    return f"engine={args.engine!r} samples from text alone"


def as_dict(setting: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return a setting that may have come as JSON, which GRPOConfig has read."""
    assert setting is None or isinstance(setting, dict), setting
    return setting or {}


def training_plan(
    args: GRPOConfig, rows: Sequence[int] | None, has_data: bool, ranks: int | None = None
) -> Plan:
    """Return what the settings mean for this dataset and so many processes, by default this launch's; without a dataset, for a step."""
    return make_plan(
        group_size=args.num_generations,
        micro_batch=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        ranks=ranks or args.world_size,
        steps_per_generation=args.steps_per_generation,
        generation_batch_size=args.generation_batch_size,
        iterations=args.num_iterations,
        num_prompts=None if rows is None else len(rows),
        max_steps=args.max_steps if has_data else max(args.max_steps, 1),
        epochs=args.num_train_epochs,
        first=growing_first(args),
        replayed=args.replay_groups,
    )


def prompt_reader(
    args: GRPOConfig,
    processing: PreTrainedTokenizerBase | ProcessorMixin | None,
    policy: nn.Module | None = None,
) -> PromptReader:
    """Build the reader that turns rows into prompts; without a tokenizer, one that only knows the limits."""
    eyes = None if processing is None or policy is None else make_eyes(args, processing, policy)
    return PromptReader(
        loading.tokenizer_of(processing),  # only lengths need it
        as_dict(args.chat_template_kwargs),
        args.max_prompt_length,
        args.overlong_prompts,
        None if policy is None else context_length(policy),
        args.max_completion_length,
        None if policy is None else fitness.rows_of(policy) or None,
        eyes=eyes,
        blind=why_blind(args, eyes, policy),
        use_images=args.use_images,
        drops_bad_images=args.bad_images == "drop",
    )


def make_prompts(args: GRPOConfig, reader: PromptReader, dataset: object) -> ShardedPrompts:
    """Build what reads the prompts of this process, with the plan of the run, whose accumulation the settings take over.

    It warns where prompts are repeated within a round.
    """
    kept = kept_rows(dataset, reader)
    quota = make_quota(args, kept, dataset)
    kept = kept if quota is None else quota.kept
    plan = training_plan(args, kept, dataset is not None)
    warn_if_cycled(plan)
    warn_of_small_tasks(quota, plan.prompts_per_rollout)
    args.gradient_accumulation_steps = plan.accumulation
    return ShardedPrompts(plan, reader, kept, args.process_index, quota)


def loader_workers(args: GRPOConfig, by_number: bool) -> dict[str, Any]:
    """Return the loader's arguments for processes that read rows ahead; a stream is read by the training process alone."""
    if not by_number or not args.dataloader_num_workers:
        return {}
    return {
        "num_workers": args.dataloader_num_workers,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "persistent_workers": args.dataloader_persistent_workers,
    }


def make_sampling(
    args: GRPOConfig,
    ending: Sequence[int],
    padding: int | None,
    unknown: Sequence[int] = (),
    closing: Sequence[str] = (),
) -> Sampling:
    """Return how training samples.

    Args:
        ending: ids that end a completion.
        unknown: ids that the tokenizer has no token for; they are never drawn.
        padding: the tokenizer's padding id; it is never drawn, unless it ends a completion too.
        closing: texts that end a turn with a call.

    Raises:
        ConfigError: an option that the sampler does not know, or a value with which nothing can be drawn.
    """
    options = generation_options(
        sampler_options(args)[0], _own_numbers(args), decided=_decided(args, padding)
    )
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
        unknown_ids=tuple(unknown),
        begin_suppress_tokens=options.begin_suppress_tokens,
        bad_words_ids=options.bad_words_ids,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        stop_ids=tuple(ending),
        stop_strings=tuple(dict.fromkeys((*options.stop_strings, *closing))),
        max_turn_length=args.max_turn_length,
        seed=args.seed,
    )


EVALUATED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""Numbers that evaluation may have of its own."""

OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Values that None stands for."""


def make_eval_sampling(
    args: GRPOConfig, training: Sampling, padding: int | None = None, closing: Sequence[str] = ()
) -> Sampling:
    """Return how evaluation samples: as training does, but for what `eval_generation_kwargs` says.

    Its `eos_token_id` adds to the ids that end a completion, as that of `generation_kwargs` does.

    Args:
        padding: the tokenizer's padding id.
        closing: texts that end a turn with a call, whatever else does.

    Raises:
        ConfigError: an option that the sampler does not know, or a value with which nothing can be drawn.
    """
    given, _ = sampler_options(args, "eval_generation_kwargs")
    changed: dict[str, Any] = {"greedy": True} if given.pop("do_sample", True) is False else {}
    for name in [name for name in EVALUATED if name in given]:
        value = given.pop(name)
        changed[name] = OFF.get(name) if value is None else value
        if isinstance(changed[name], bool) or not isinstance(changed[name], int | float):
            raise ConfigError(
                f"eval_generation_kwargs sets {name}={value!r}; it must be a number. Leave it out for training's."
            )
    options = generation_options(given, _own_numbers(args), "eval_generation_kwargs", _decided(args, padding))
    changed |= {
        name: value for name, value in vars(options).items() if name in given and name != "eos_token_id"
    }
    if "stop_strings" in changed:
        changed["stop_strings"] = tuple(dict.fromkeys((*changed["stop_strings"], *closing)))
    ending = tuple(dict.fromkeys((*training.stop_ids, *options.eos_token_id)))
    padding = None if training.padding_id in ending else training.padding_id
    try:
        return replace(training, **changed, stop_ids=ending, padding_id=padding)
    except ConfigError as error:
        raise ConfigError(f"eval_generation_kwargs: {error}") from error


def _decided(args: GRPOConfig, padding: int | None) -> dict[str, object]:
    """Return the options of this run that GRPO decides: the same value, given again, changes nothing."""
    return {"pad_token_id": padding, "num_return_sequences": args.num_generations}


def _own_numbers(args: GRPOConfig) -> dict[str, float | None]:
    """Return the sampling options that are fields of GRPOConfig, by field name."""
    return {
        "max_completion_length": args.max_completion_length,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p,
        "repetition_penalty": args.repetition_penalty,
    }


def make_engine(
    args: GRPOConfig,
    tokenizer: PreTrainedTokenizerBase,
    ending: Sequence[int],
    autocast: Callable[[], AbstractContextManager[object]],
    policy: nn.Module,
    sampling: Sampling,
    say: Callable[[str], None],
    eyes: Eyes | None = None,
) -> Engine:
    """Build the engine that samples. Collective.

    Args:
        args: the settings.
        tokenizer: the policy's.
        ending: ids that end a completion.
        autocast: makes the context in which the policy computes.
        policy: the one that is trained.
        sampling: how it draws.
        say: tells people a sentence.
        eyes: show the policy the pictures of prompts; None: it reads text alone.

    Raises:
        ConfigError: servers are asked for that cannot be started here.
    """
    decode = make_decode(args, tokenizer, ending)
    if args.engine == "native":
        return NativeEngine(decode, autocast, schedule=args.tool_schedule, eyes=eyes)
    from covey.trainer.remote_engine import make_remote_engine

    return make_remote_engine(args, policy, sampling, decode, autocast, say)


def make_decode(
    args: GRPOConfig, tokenizer: PreTrainedTokenizerBase, ending: Sequence[int]
) -> Callable[[Sequence[int]], str]:
    """Return what makes ids the text of a completion, of which end and padding are no part."""
    unsaid = frozenset(i for i in (*ending, tokenizer.pad_token_id) if i is not None)
    return lambda ids: decode_text(tokenizer, ids, unsaid, args.keep_special_tokens)


def make_scorer(
    args: GRPOConfig, rewards: Mixture, weights: Mapping[str, float], eyes: ProcessorEyes | None = None
) -> Scorer:
    """Build what gives groups their scores and advantages.

    Args:
        eyes: of the policy; None: it is shown no pictures.
    """
    fixed = None if args.reward_weights is None else weights  # the rewards' own may change over training
    name, scale = args.advantage_estimator, cast(Scale, args.scale_rewards)
    estimate = estimator(name, args.multi_objective_aggregation, scale)
    if growing_first(args) is not None:
        estimate = growing_estimator(name, args.num_generations)
    shaping = Shaping(args.truncated_reward, args.truncated_in_baseline)
    by_turn = TurnCredit(args.turn_discount, cast(Scale, args.scale_rewards))
    credit = by_turn if args.credit_assignment == "turn" else None
    asked = any("image_sizes" in reward.names for reward in rewards)
    sizes = seen_sizes(eyes) if asked else None
    return Scorer(rewards, fixed, estimate, gather, args.process_index, shaping, credit, sizes)


def seen_sizes(eyes: ProcessorEyes | None) -> Callable[[Prompt], list[tuple[int, int]]] | None:
    """Return what tells the sizes that the policy sees of a prompt's pictures; None where it is shown none."""
    return None if eyes is None else lambda prompt: eyes.seen_sizes(prompt.ids, prompt.pictures)


def task_rewards(args: GRPOConfig, weights: Mapping[str, float]) -> list[str] | None:
    """Return the names of the rewards that say whether a group teaches something; None: all do.

    Raises:
        ConfigError: one of them is not there.
    """
    named = args.dynamic_sampling_rewards
    unknown = set(named or ()) - set(weights)
    if unknown:
        raise ConfigError(
            f"dynamic_sampling_rewards names {', '.join(map(repr, sorted(unknown)))}; the rewards are "
            f"{', '.join(map(repr, weights))}."
        )
    return named


def make_growth(args: GRPOConfig, weights: Mapping[str, float], plan: Plan) -> GroupGrowth | None:
    """Build what decides which groups grow; None where all are of one size. Raise a ConfigError as `task_rewards` does."""
    if plan.first is None:
        return None
    named, out = task_rewards(args, weights), not args.truncated_in_baseline
    succeeds = partial(successes, named, args.group_allocation_success, out)
    return GroupGrowth(plan, args.process_index, succeeds, joined_starts)


def signal_test(
    args: GRPOConfig, weights: Mapping[str, float], bounded: Container[str] = ()
) -> Callable[[ScoredGroup], bool]:
    """Build the test whether a group teaches something, by its task rewards. Raise a ConfigError as `task_rewards` does.

    Args:
        bounded: rewards with a bound, which are task rewards while their multiplier is above 0.
    """
    named = task_rewards(args, weights)
    per_reward = args.multi_objective_aggregation == "normalize_then_sum"

    def has_signal(scored: ScoredGroup) -> bool:
        present = {n: scored.weights[n] if n in bounded else weights[n] for n in scored.scores}
        heeded = dict.fromkeys(named, 1.0) if named else present
        return carries_signal(scored, heeded, per_reward)

    return has_signal


def prepare_gradients(policy: Any, accelerator: Accelerator) -> None:
    """Let gradients and outputs through as they were computed. To be called before the policy is wrapped for training.

    Reentrant checkpointing drops the gradient where no input has one; with frozen embeddings none has. With FSDP2
    accelerate rounds outputs to half precision where that is computed in: log-probabilities, which are made in float32,
    would be left with 8 bits.
    """
    is_frozen = any(not p.requires_grad for p in policy.parameters())
    if is_frozen and hasattr(policy, "enable_input_require_grads"):
        policy.enable_input_require_grads()
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    precision: Any = getattr(plugin, "mixed_precision_policy", None)
    if plugin is not None and hasattr(precision, "output_dtype"):
        plugin.mixed_precision_policy = replace(precision, output_dtype=None)


def check_tower_gradients(args: GRPOConfig, policy: nn.Module) -> None:
    """Raise where checkpointed layers of a tower would drop the gradient of what is trained in it beside frozen weights.

    Reentrant checkpointing does so where no input of a layer has one. Of a decoder the embeddings are given one; what goes into the first
    layer of a tower is each family's own affair, and in some it stays without.
    """
    model: Any = innermost(policy)
    kinds = {p.requires_grad for p in model.get_encoder(modality="image").parameters()}
    asked = args.gradient_checkpointing_kwargs if args.gradient_checkpointing else None
    if isinstance(asked, dict) and asked.get("use_reentrant") and len(kinds) > 1:
        raise ConfigError(
            "gradient_checkpointing_kwargs={'use_reentrant': True} drops gradients in a tower that is trained in part (lora_vision=True). "
            "Leave it out: layers are then checkpointed without."
        )


def make_run_log(
    args: GRPOConfig,
    plan: Plan,
    weights: Mapping[str, float],
    policy: nn.Module,
    name: str,
    dataset: object,
    tasks: set[str],
    tools: Mapping[str, object],
) -> RunLog:
    """Build the log of the run; facts of model and dataset are found on the process that records them.

    On a CPU the threads are settled here: before anything is computed, and where it can be told.

    Args:
        tasks: those that rewards name; the dataset's are added.
        tools: what the record says of each, by name.
    """
    threads = (
        settle_threads(sum(p.numel() for p in policy.parameters())) if args.device.type == "cpu" else None
    )
    facts: dict[str, Mapping[str, object]] = {}
    if args.process_index == 0:
        facts = {
            "model": model_facts(policy, name),
            "dataset": dataset_facts(dataset),
            "threads": {"note": threads},
            "tools": tools,
        }
    log = RunLog(args, weights, plan, facts, gather)
    log.task_column, log.tasks = checks.known_tasks(dataset, args.task_column, tasks)
    log.note({**task_metrics((), log.task_column, log.tasks), "num_tokens": Total(0)})
    return log


# --- 3 update ---------------------------------------------------------------------------------------------------------


def make_updater(
    args: GRPOConfig,
    policy: nn.Module,
    loss: Loss | None,
    accelerator: Accelerator,
    run_log: RunLog,
    present_step: Callable[[], int],
    eyes: Eyes | None = None,
) -> Updater:
    """Build what computes the loss and its gradient, with the reference where the divergence to it is in the reward or loss."""
    prepare_gradients(policy, accelerator)
    is_sharded = accelerator.distributed_type.value in ("FSDP", "DEEPSPEED") or any(
        hasattr(p, "full_tensor") for p in policy.parameters()
    )
    if eyes is not None and is_sharded:
        raise ConfigError(
            "A policy that sees pictures is not trained with sharded weights (FSDP, DeepSpeed) yet. Start it with plain data parallelism "
            "(accelerate launch --multi_gpu), with an adapter where weights are too large, or drop the column of pictures."
        )
    if eyes is not None:
        check_tower_gradients(args, policy)
    joint = args.world_size > 1 and is_sharded

    def note_oom_retry(event: str) -> None:
        run_log.event("warning", event, present_step())
        run_log.note({"update/out_of_memory": Total(1)})

    aux_coef = balancing_coef(policy, args.router_aux_loss_coef)
    return Updater(
        forward=Forward(
            policy,
            args.temperature,
            balances=aux_coef > 0,
            note_event=lambda event: run_log.event("warning", event, present_step()),
            agree=lambda packs: all(gather(packs)) if joint else packs,
            eyes=eyes,
        ),
        aux_coef=aux_coef,
        objective=make_objective(args, loss),
        reduction=make_reduction(args),
        selection=make_selection(args, loss),
        bonus=make_entropy_bonus(args),
        reference=Reference(policy) if args.beta else None,
        kl_penalty=make_kl_penalty(args),
        oom_retry=OomRetry(
            TokenBudget(args.max_tokens_per_forward),
            present_step,
            note_oom_retry,
            args.process_index,
            args.world_size,
            joint,
            frozenset() if eyes is None else eyes.placeholders,
        ),
        accelerator=accelerator,
        note=run_log.note,
        gather=gather,
        offloads_activations=args.activation_offloading,
        tasks=Tasks(run_log.task_column, run_log.tasks, args.task_weights == "equal"),
    )


def make_objective(args: GRPOConfig, loss: Loss | None = None) -> Objective:
    """Build the function that is minimised.

    Args:
        loss: in place of the loss that `loss_type` names; the reduction stays.
    """
    correction = SamplerCorrection(
        args.importance_sampling_mode, args.importance_sampling_cap, args.importance_sampling_floor
    )
    return Objective(
        loss=make_loss(args) if loss is None else loss,
        correction=correction if is_corrected(args) else None,
        off_policy_threshold=args.off_policy_mask_threshold,
        beta=0.0 if args.kl_in_reward else args.beta,
        kl_estimator=args.kl_estimator or "k3",
        unbiased_kl=args.use_bias_correction_kl,
    )


def is_corrected(args: GRPOConfig) -> bool:
    """Return whether tokens are weighed for what the sampler computed differently."""
    is_known = not lacks_policy_logprobs(args)
    return args.importance_sampling_correction and LOSS_TYPES[args.loss_type].is_corrected and is_known


def make_loss(args: GRPOConfig) -> Loss:
    """Build the loss of a token that `loss_type` names."""
    clip = Clip(args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high, args.delta)
    level = args.importance_sampling_level
    match args.loss_type:
        case "grpo" | "dr_grpo" | "dapo" | "bnpo" | "prompt_mean":
            return Clipped(clip, level)
        case "luspo":
            return Luspo(clip)
        case "gmpo":
            return Gmpo(clip)
        case "cispo":
            return Cispo(clip.low, clip.high, args.cispo_bound, level)
        case "sapo":
            return Sapo(args.sapo_temperature_pos, args.sapo_temperature_neg, level)
        case "vespo":
            positive = args.vespo_k_pos, args.vespo_lambda_pos
            negative = args.vespo_k_neg, args.vespo_lambda_neg
            is_corrected = args.importance_sampling_correction and not lacks_policy_logprobs(args)
            return Vespo(positive, negative, is_corrected)
        case "dppo":
            return Dppo(clip, args.dppo_kl_coef)
        case "clip_cov":
            return ClipCov(clip)
        case "kl_cov":
            return KlCov(args.kl_cov_coef)


def make_reduction(args: GRPOConfig) -> Reduction:
    """Build the weights of tokens in the loss of a step."""
    name = LOSS_TYPES[args.loss_type].reduction
    return Reduction(name, args.max_completion_length, args.truncated_in_denominator)


def make_selection(args: GRPOConfig, loss: Loss | None = None) -> TokenSelection:
    """Build the choice of tokens over a whole optimizer step; a loss of the user's own chooses none by covariance."""
    kind = args.loss_type if loss is None else None
    bounds = (args.covariance_low, args.covariance_high) if kind == "clip_cov" else None
    share = args.covariance_share if kind in ("clip_cov", "kl_cov") else None
    is_m2 = is_corrected(args) and args.importance_sampling_mode == "token_m2"
    moment = args.importance_sampling_m2 if is_m2 else None
    return TokenSelection(args.top_entropy_quantile, share, bounds, moment)


def make_entropy_bonus(args: GRPOConfig) -> EntropyBonus:
    """Build the coefficient of the entropy bonus, fixed or adaptive."""
    adaptation = Adaptation(
        args.entropy_target, args.entropy_coef_delta, args.entropy_coef_min, args.entropy_coef_max
    )
    return EntropyBonus(args.entropy_coef, adaptation if args.use_adaptive_entropy else None)


def make_kl_penalty(args: GRPOConfig) -> KlPenalty | None:
    """Build the divergence that is taken off rewards; None where it goes into the loss, or nowhere.

    The default estimator is the one whose gradient is unbiased in a reward.
    """
    return KlPenalty(args.beta, args.kl_estimator or "k1") if args.kl_in_reward else None
