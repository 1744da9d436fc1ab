"""Checks of datasets and rewards, once, before anything is sampled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from covey.config import GRPOConfig
from covey.config.choices import LOSS_SETTINGS, LOSS_TYPES, REDUCTIONS
from covey.errors import ConfigError, DatasetError, RewardError, warn
from covey.rewards.batch import RESERVED
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture
from covey.sample.chat import closing_tokens
from covey.sample.messages import checked_content
from covey.sample.prompts import PromptReader
from covey.trainer.data import task_names
from covey.trainer.given_data import column_names, is_map_style, prompts_at_hand, readable
from covey.update.terms import Loss

MOST_PROMPTS = 100_000
"""Rows whose prompts are looked at before a run; some seconds' work."""
MOST_RENDERED, MOST_SECONDS = 1_000, 2.0
"""Rows of each dataset that are made into token ids before a run, and how long that may take."""
SENSES = ("image", "images", "video", "videos", "audio", "audios")
ANSWERS = ("completion", "chosen", "rejected", "messages")


def reward_weights(rewards: Mixture, given: Sequence[float] | None) -> dict[str, float]:
    """Return the weights by name: those of the settings, or else those that the rewards bring along.

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


def check_columns(rewards: Sequence[Reward], datasets: Mapping[str, Any], firsts: Mapping[str, Any]) -> None:
    """Raise where a required argument of a reward is no column of a dataset, and warn of columns that nothing reads.

    Args:
        datasets: by the names of the arguments.
        firsts: the first row of each; None where it has none.

    Raises:
        RewardError: a column is missing.
        DatasetError: a first row is none.
    """
    for name, dataset in datasets.items():
        if firsts[name] is not None:
            _checked(name, firsts[name], 0)
        columns = column_names(dataset, lambda name=name: firsts[name])  # type: ignore[misc]
        if columns is None:
            continue
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
        warn_of_meanings(rewards, name, columns, firsts[name])


def warn_of_meanings(rewards: Sequence[Reward], name: str, columns: Sequence[str], first: Any) -> None:
    """Warn of columns that have a meaning elsewhere and none here: pictures, answers, tools beside plain text."""
    asked = {argument for reward in rewards for argument in reward.names}
    unread = [column for column in columns if column not in asked]
    senses, answers = [c for c in unread if c in SENSES], [c for c in unread if c in ANSWERS]
    if senses:
        warn(
            f"{name} has the column {', '.join(map(repr, senses))}: policies that see or hear are not supported yet, and the policy "
            "is shown the text of 'prompt' alone. Remove the column, or name it in a reward that reads it."
        )
    if answers:
        warn(
            f"{name} has the column {', '.join(map(repr, answers))}: GRPO samples its own answers to 'prompt', and trains on none "
            "of the dataset's. Remove the column, or name it in a reward that reads it."
        )
    if (
        "tools" in unread
        and isinstance(first, Mapping)
        and isinstance(first.get("prompt"), str)
        and first.get("tools")
    ):
        warn(
            f"{name} has the column 'tools', which a chat template prints, and its prompts are plain text: the policy is not "
            "shown the tools. Give prompts as messages."
        )


def check_prompts(datasets: Mapping[str, Any]) -> None:
    """Raise where a row has no prompt, as far as that is cheap to see: in lists and tables, not behind a transform.

    Only the first `MOST_PROMPTS` rows of a dataset are looked at; nothing is tokenised.

    Raises:
        DatasetError: a prompt is empty, or neither text nor messages.
    """
    for name, dataset in datasets.items():
        for number, row in enumerate(prompts_at_hand(dataset, MOST_PROMPTS)):
            _checked(name, row, number)


def _checked(name: str, row: object, number: int) -> None:
    try:
        checked_content(row, number)
    except DatasetError as error:
        raise DatasetError(f"{name}: {error}") from None


def check_ids(
    reader: PromptReader, datasets: Mapping[str, Any], firsts: Mapping[str, Any], kept: Sequence[int] | None
) -> None:
    """Raise where template or tokenizer refuse one of the first rows of a dataset: of a stream the first.

    Args:
        kept: numbers of the rows that training may draw; None for a stream.

    Raises:
        DatasetError: a row cannot be made into token ids.
    """
    for name, dataset in datasets.items():
        deadline, rows = time.monotonic() + MOST_SECONDS, readable(dataset)
        if not is_map_style(dataset):
            rows, numbers = [firsts[name]], range(int(firsts[name] is not None))
        else:
            numbers = range(len(dataset)) if name != "train_dataset" or kept is None else kept
        for number in numbers[:MOST_RENDERED]:
            if time.monotonic() > deadline:
                break
            try:
                if is_map_style(dataset) or reader.is_kept(rows[number], number):
                    reader.read(rows[number], number, (number, 0))
            except DatasetError as error:
                raise DatasetError(f"{name}: {error}") from error


def warn_of_open_turns(reader: PromptReader, firsts: Mapping[str, Any], ending: Sequence[int]) -> None:
    """Warn where the chat template closes an answer with a token that ends no completion: the policy would go on."""
    first = firsts.get("train_dataset")
    if not isinstance(first, Mapping) or isinstance(first.get("prompt"), str):
        return
    tokenizer: Any = reader.tokenizer
    try:
        closing = closing_tokens(tokenizer, reader.arguments(first, 0))
    except Exception:  # a template that wants other messages than these is asked no further
        return
    if not closing or set(closing) & set(ending):
        return
    name = str(tokenizer.convert_ids_to_tokens(closing[0]))
    ends = ", ".join(repr(str(tokenizer.convert_ids_to_tokens(i))) for i in ending)
    warn(
        f"The chat template closes an answer with {name!r}, and a completion ends with {ends or 'nothing'} only: a policy that "
        f'writes {name!r} is sampled on. If it ends its answers so, set generation_kwargs={{"eos_token_id": [{closing[0]}]}}.'
    )


def check_loader(args: GRPOConfig, train_dataset: object) -> None:
    """Refuse settings of accelerate's loader, which Covey does not use; warn of workers that cannot share a stream.

    Raises:
        ConfigError: one of them asks for what is not done.
    """
    given: Any = args.accelerator_config
    for name in ("dispatch_batches", "split_batches"):
        if getattr(given, name, None):
            raise ConfigError(
                f"accelerator_config sets {name}=True, which has no effect: every process reads the rows of a rollout itself and "
                "keeps its share. Leave it out."
            )
    if args.dataloader_num_workers and train_dataset is not None and not is_map_style(train_dataset):
        warn(
            f"dataloader_num_workers={args.dataloader_num_workers} becomes 0: the training dataset is a stream, and each worker would "
            "read all of it. Give a dataset whose rows have numbers for workers."
        )


def known_tasks(dataset: Any, column: str, names: set[str]) -> tuple[str, list[str]]:
    """Return the task column and the tasks in it; an empty name where the column tells every row from the others.

    Args:
        names: tasks that rewards name; a column with one of them is what they take it for.
    """
    tasks = task_names(dataset, column)
    if tasks or dataset is None or not is_map_style(dataset) or column not in (column_names(dataset) or []):
        return column, tasks
    values = {
        str(readable(dataset)[number].get(column)) for number in range(min(len(dataset), MOST_RENDERED))
    }
    if values == {"None"} or values & names:
        return column, tasks
    warn(
        f"The column {column!r} of the training dataset has a value of its own for more than half of the rows: these are no tasks, "
        "and no metrics are kept for them. If the tasks are in another column, name it: task_column='...'."
    )
    return "", tasks


def check_own_loss(args: GRPOConfig, loss: Loss | None) -> None:
    """Refuse a loss of the user's own that is no function, or comes with settings of the losses that it replaces.

    Raises:
        ConfigError: it does.
    """
    if loss is None:
        return
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
