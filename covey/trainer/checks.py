"""Settings and data → the parts of a trainer. Pure, or checked once before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from covey.config import GRPOConfig
from covey.config.choices import LOSS_SETTINGS, LOSS_TYPES, REDUCTIONS
from covey.errors import ConfigError, DatasetError, RewardError, warn
from covey.plan import Plan, make_plan
from covey.rewards.batch import RESERVED
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture
from covey.sample.prompts import PromptReader, checked_content
from covey.trainer.data import column_names, is_map_style
from covey.update.terms import Loss

MOST_PROMPTS = 100_000
"""Rows whose prompts are looked at before a run; some seconds' work."""
MOST_TASKS = 100
"""More values than this in the task column are identities of rows, not tasks."""


def reward_weights(rewards: Mixture, given: Sequence[float] | None) -> dict[str, float]:
    """Weight by name: those of the settings, or else those that the rewards bring along.

    Raises:
        ConfigError: another number of weights than of rewards.
    """
    if given is None:
        return rewards.weights
    if len(given) != len(rewards):
        raise ConfigError(
            f"reward_weights has {len(given)} weights for {len(rewards)} rewards ({', '.join(r.name for r in rewards)}). "
            "Give one per reward."
        )
    return {r.name: float(w) for r, w in zip(rewards, given, strict=True)}


def check_columns(rewards: Sequence[Reward], train_dataset: Any, eval_dataset: Any) -> None:
    """Every required argument of a reward is a column of every dataset; a stream may not say before it is read.

    Raises:
        RewardError: one is missing.
    """
    for name, dataset in _named(train_dataset, eval_dataset).items():
        columns = None if dataset is None else column_names(dataset)
        if columns is not None:
            _check_columns(rewards, columns, name)


def check_prompts(train_dataset: Any, eval_dataset: Any) -> None:
    """Every row has a prompt, as far as that is cheap to see: in lists, and in `datasets.Dataset`s without a format.

    Only the first `MOST_PROMPTS` rows of a dataset are looked at; nothing is tokenised.

    Raises:
        DatasetError: a prompt is empty, or neither text nor messages.
    """
    for name, dataset in _named(train_dataset, eval_dataset).items():
        for number, row in enumerate(_rows(dataset)):
            try:
                checked_content(row, number)
            except DatasetError as error:
                raise DatasetError(f"{name}: {error}") from None


def _rows(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a dataset, or their prompts alone, as far as it gives them away at once."""
    if isinstance(dataset, list):
        return iter(dataset[:MOST_PROMPTS])
    is_table = is_map_style(dataset) and hasattr(dataset, "select_columns") and hasattr(dataset, "format")
    if is_table and "prompt" in dataset.column_names and dataset.format["type"] is None:
        return iter(dataset.select_columns(["prompt"]).select(range(min(len(dataset), MOST_PROMPTS))))
    return iter(())


def _named(train_dataset: Any, eval_dataset: Any) -> dict[str, Any]:
    """The datasets by the names that messages call them."""
    parts = eval_dataset if isinstance(eval_dataset, dict) else None
    if parts is None:
        return {"train_dataset": train_dataset, "eval_dataset": eval_dataset}
    return {"train_dataset": train_dataset} | {f"eval_dataset[{n!r}]": part for n, part in parts.items()}


def _check_columns(rewards: Sequence[Reward], columns: Sequence[str], name: str) -> None:
    for reward in rewards:
        missing = reward.missing_columns(columns)
        if missing:
            raise RewardError(
                f"Reward {reward.name!r} needs {', '.join(map(repr, missing))}, and {name} has no such column; it has "
                f"{', '.join(map(repr, columns))}. Add the column, or give the argument a default."
            )
    taken = sorted(set(columns) & set(RESERVED))
    if taken:
        warn(
            f"{name} has columns named {', '.join(map(repr, taken))}, which are names of arguments that Covey fills itself: "
            "rewards do not see these columns. Rename them."
        )


def prompt_reader(args: GRPOConfig, tokenizer: Any, context: int | None) -> PromptReader:
    """How rows become prompts."""
    return PromptReader(
        tokenizer,
        as_dict(args.chat_template_kwargs),
        args.max_prompt_length,
        args.overlong_prompts,
        context,
        args.max_completion_length,
    )


def kept_rows(dataset: Any, reader: PromptReader) -> list[int] | None:
    """Numbers of the rows that may be drawn; None for a stream.

    Raises:
        DatasetError: all of them are dropped, or one is too long and may not be.
    """
    if dataset is None or not is_map_style(dataset):
        return None
    if reader.max_length is None or reader.overlong == "truncate":
        return list(range(len(dataset)))
    kept = [number for number in range(len(dataset)) if reader.is_kept(dataset[number], number)]
    _tell_of_dropped(len(dataset) - len(kept), len(dataset), reader.max_length)
    return kept


def _tell_of_dropped(dropped: int, total: int, limit: int) -> None:
    what = (
        f"of {total} rows of the training dataset have a prompt of more than max_prompt_length={limit} tokens"
    )
    if dropped and dropped == total:
        raise DatasetError(
            f"All {what[3:]}, and overlong_prompts='drop' leaves them out: none are left. Raise the limit, shorten the "
            "prompts, or set overlong_prompts to 'truncate'."
        )
    if dropped:
        warn(f"{dropped} {what}, and overlong_prompts='drop' leaves them out.")


def task_names(dataset: Any, column: str) -> list[str]:
    """The tasks of a map-style dataset; none where it has no such column, or more values than tasks can be."""
    if dataset is None or not is_map_style(dataset) or column not in (column_names(dataset) or []):
        return []
    values = dataset[column] if hasattr(dataset, "column_names") else [row.get(column) for row in dataset]
    names = sorted({str(value) for value in values if value is not None})
    return names if len(names) <= MOST_TASKS else []


def training_plan(
    args: GRPOConfig, rows: Sequence[int] | None, has_data: bool, ranks: int | None = None
) -> Plan:
    """What the settings mean for this dataset; without one, for a step.

    Args:
        ranks: processes; by default those of this launch.
    """
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
    )


def one_source(argument: Mapping[str, Any] | None, setting: Any) -> dict[str, Any] | None:
    """Arguments for from_pretrained, from the trainer's argument or from its settings.

    Raises:
        ConfigError: from both.
    """
    if argument and setting:
        raise ConfigError("model_init_kwargs is given twice: to GRPOTrainer and in GRPOConfig. Give it once.")
    return dict(argument or setting or {})


def as_dict(setting: Any) -> dict[str, Any]:
    """A setting that may have come as JSON, which GRPOConfig has read."""
    assert setting is None or isinstance(setting, dict), setting
    return setting or {}


def let_gradients_through(policy: Any) -> None:
    """Reentrant checkpointing drops the gradient where no input has one; with frozen embeddings none has."""
    is_frozen = any(not p.requires_grad for p in policy.parameters())
    if is_frozen and hasattr(policy, "enable_input_require_grads"):
        policy.enable_input_require_grads()


def keep_outputs(accelerator: Any) -> None:
    """Let FSDP2 give outputs as they were computed. accelerate rounds them to half precision where that is computed in:
    log-probabilities, which are made in float32, would be left with 8 bits. To be called before the model is wrapped."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    policy: Any = getattr(plugin, "mixed_precision_policy", None)
    if plugin is not None and hasattr(policy, "output_dtype"):
        plugin.mixed_precision_policy = replace(policy, output_dtype=None)


def check_can_cut(args: GRPOConfig, distributed: Any) -> None:
    """A limit of tokens makes processes differ in the number of passes; only DDP talks once per backward pass.

    Raises:
        ConfigError: the weights are sharded.
    """
    if args.max_tokens_per_forward is not None and str(distributed.value) in ("FSDP", "DEEPSPEED"):
        raise ConfigError(
            f"max_tokens_per_forward={args.max_tokens_per_forward} does not go with {distributed.value}: every process has to take "
            "part in every pass. Lower per_device_train_batch_size, and raise gradient_accumulation_steps, instead."
        )


def check_own_loss(args: GRPOConfig, loss: Loss) -> None:
    """Refuse a loss of the user's own that is no function, or comes with settings of the losses that it replaces.

    Raises:
        ConfigError: it does.
    """
    if not callable(loss):
        raise ConfigError(
            f"loss is {loss!r}; it must be a function of LossTerms that returns one loss per token. A loss that has a name "
            f"is chosen with GRPOConfig(loss_type=...): {', '.join(LOSS_TYPES)}."
        )
    if args.loss_type not in REDUCTIONS:
        raise ConfigError(
            f"loss_type={args.loss_type!r} names a loss, and GRPOTrainer was given one as `loss`. Beside it, loss_type says "
            f"how token losses are summed: {', '.join(REDUCTIONS)}."
        )
    corrections = {
        n for n in LOSS_SETTINGS if n.startswith("importance_sampling") and not n.endswith("level")
    }
    defaults = {f.name: f.default for f in fields(args)}
    for name in sorted(LOSS_SETTINGS - corrections):
        if getattr(args, name) != defaults[name]:
            raise ConfigError(
                f"{name}={getattr(args, name)!r} has no effect: GRPOTrainer was given a loss of your own, which knows its "
                f"settings itself. Leave it at {defaults[name]!r}."
            )
