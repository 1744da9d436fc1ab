"""Checks of datasets and rewards, once, before anything is sampled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from covey.config import GRPOConfig
from covey.config.choices import LOSS_SETTINGS, LOSS_TYPES, REDUCTIONS
from covey.errors import ConfigError, DatasetError, RewardError, warn
from covey.rewards.batch import RESERVED
from covey.rewards.contract import Reward
from covey.sample.chat import closing_tokens
from covey.sample.given_data import GivenData, column_names, is_map_style, prompts_at_hand, readable
from covey.sample.messages import checked_content
from covey.sample.prompts import PromptReader
from covey.trainer.data import task_names
from covey.types import Prompt
from covey.update.terms import Loss

if TYPE_CHECKING:
    from covey.rewards.mixture import Mixture

MOST_PROMPTS = 100_000
"""Rows whose prompts are looked at before a run; some seconds' work."""
MOST_RENDERED, MOST_SECONDS = 1_000, 2.0
"""Rows of each dataset that are made into token ids before a run, and how long that may take."""
SENSES = ("video", "videos", "audio", "audios")
ANSWERS = ("completion", "chosen", "rejected", "messages")
NO_PRICE: Mapping[str, str] = {
    "maxrl": "it divides by the mean of the totals, which a multiplier moves, and which at_most takes below 0",
    "pass_at_k": "it pays the best completion of a group alone",
}
"""Estimators under which a reward's weight is not the price of its mean, and why."""


def reward_weights(args: GRPOConfig, rewards: Mixture) -> dict[str, float]:
    """Return the weights by name: those of the settings, or else those that the rewards bring along.

    Those that environments bring are not among the settings.

    Raises:
        ConfigError: another number of weights than of rewards, or a setting that a reward with a bound does not go with.
    """
    given: Sequence[float] | None = args.reward_weights
    check_bounded(args, rewards)
    if given is None:
        return rewards.weights
    counted = [r.name for r in rewards if not getattr(r.function, "of_environment", False)]
    if len(given) != len(counted):
        raise ConfigError(
            f"reward_weights has {len(given)} weights for {len(counted)} rewards ({', '.join(counted)}). Give one per reward."
        )
    return rewards.weights | {name: float(w) for name, w in zip(counted, given, strict=True)}


def check_bounded(args: GRPOConfig, rewards: Mixture) -> None:
    """Raise a ConfigError where a reward has a bound, and settings say another weight for it or leave its multiplier without a price."""
    if not rewards.bounds:
        return
    who = f"Reward {next(iter(rewards.bounds))!r} has a bound (at_least, at_most), which"
    if args.reward_weights is not None:
        raise ConfigError(
            f"{who} makes its multiplier its weight, and reward_weights={args.reward_weights} gives each reward another one. Leave reward_weights out, "
            "and give the other rewards their weights: reward(..., weight=...)."
        )
    if args.advantage_estimator in NO_PRICE:
        raise ConfigError(
            f"{who} does not go with advantage_estimator={args.advantage_estimator!r}: {NO_PRICE[args.advantage_estimator]}, so that a multiplier does "
            "not price the mean that the bound is on. Use 'rloo', or 'grpo'."
        )


def check_columns(rewards: Sequence[Reward], data: GivenData, own: Sequence[str] = ()) -> None:
    """Raise where a required argument of a reward is no column of a dataset, and warn of columns that nothing reads.

    Args:
        own: columns that the run adds to those of the datasets.

    Raises:
        RewardError: a column is missing.
    """
    for name, dataset in data.named.items():
        columns = column_names(dataset, data.firsts[name]) or []
        for reward in rewards if columns else ():
            missing = reward.missing_columns([*columns, *own])
            if missing == ["environments"]:
                raise RewardError(
                    f"Reward {reward.name!r} asks for environments, and GRPOTrainer was given no environment_factory. "
                    "Give one, or take the argument out of the reward."
                )
            if missing:
                raise RewardError(
                    f"Reward {reward.name!r} needs {', '.join(map(repr, missing))}, and {name} has no such column; it has "
                    f"{', '.join(map(repr, columns))}. Add the column, or give the argument a default."
                )
        asked = {argument for reward in rewards for argument in reward.names}
        warn_of_meanings(name, [c for c in columns if c in RESERVED or c not in asked], data.firsts[name])


MEANINGS = {
    RESERVED: "Covey fills an argument of this name itself, and rewards do not see the column. Rename it.",
    SENSES: "policies that watch or hear are not supported yet, and the policy is shown none of it. Remove the "
    "column, or name it in a reward that reads it.",
    ANSWERS: "GRPO samples its own answers to 'prompt', and trains on none of the dataset's. Remove the column, or name it in a "
    "reward that reads it.",
}


def warn_of_meanings(name: str, columns: Sequence[str], first: Any) -> None:
    """Warn of columns with a meaning elsewhere and none here: arguments, pictures, answers, tools beside plain text."""
    for names, meaning in MEANINGS.items():
        found = sorted(set(columns) & set(names))
        if found:
            warn(f"{name} has the column{'s' * (len(found) > 1)} {', '.join(map(repr, found))}: {meaning}")
    is_text = isinstance(first, Mapping) and isinstance(first.get("prompt"), str)
    if "tools" in columns and is_text and first.get("tools"):
        warn(
            f"{name} has the column 'tools', which a chat template prints, and its prompts are plain text: the policy is not "
            "shown the tools. Give prompts as messages."
        )


def checked_data(
    args: GRPOConfig,
    rewards: Sequence[Reward],
    train_dataset: Any,
    eval_dataset: Any,
    own: Sequence[str] = (),
    with_columns: bool = True,
) -> GivenData:
    """Return the datasets as they can be read, checked as far as no tokenizer is needed.

    Args:
        own: columns that the run adds to those of the datasets.
        with_columns: whether the datasets and `own` are all that rewards can ask for.

    Raises:
        DatasetError, RewardError: one of them cannot be used.
        ConfigError: accelerate's loader, which is not used, is asked for something.
    """
    data = GivenData.of(train_dataset, eval_dataset)
    check_prompts(data)
    if with_columns:
        check_columns(rewards, data, own)
    asked = [n for n in ("dispatch_batches", "split_batches") if getattr(args.accelerator_config, n, None)]
    if asked:
        raise ConfigError(
            f"accelerator_config sets {asked[0]}=True, which has no effect: every process reads the rows of a rollout itself, and "
            "keeps its share. Leave it out."
        )
    if args.dataloader_num_workers and data.train is not None and not is_map_style(data.train):
        warn(
            f"dataloader_num_workers={args.dataloader_num_workers} becomes 0: the training dataset is a stream, and each worker would "
            "read all of it. Give a dataset whose rows have numbers for workers."
        )
        args.dataloader_num_workers = 0
    return data


def check_prompts(data: GivenData) -> None:
    """Raise where a row has no prompt, as far as that is cheap to see: in lists and tables; elsewhere in the first row.

    Only the first `MOST_PROMPTS` rows of a dataset are looked at; nothing is tokenised.

    Raises:
        DatasetError: a prompt is empty, or neither text nor messages.
    """
    for name, dataset in data.named.items():
        first = [row for row in (data.firsts[name],) if row is not None]
        for number, row in enumerate(prompts_at_hand(dataset, MOST_PROMPTS) or first):
            try:
                checked_content(row, number)
            except DatasetError as error:
                raise DatasetError(f"{name}: {error}") from None


def check_ids(
    reader: PromptReader,
    data: GivenData,
    kept: Sequence[int] | None,
    ending: Sequence[int],
    check: Callable[[Prompt], object] = lambda _: None,
) -> None:
    """Raise where template or tokenizer refuse one of the first rows of a dataset: of a stream the first.

    Args:
        kept: numbers of the training rows that may be drawn.
        ending: ids that end a completion; a template that closes answers with none of them is warned of.
        check: looks at the prompts, and raises.

    Raises:
        DatasetError: a row cannot be made into token ids.
    """
    for name, dataset in data.named.items():
        by_number, deadline = is_map_style(dataset), time.monotonic() + MOST_SECONDS
        rows = readable(dataset) if by_number else [row for row in (data.firsts[name],) if row is not None]
        drawn = kept if name == "train_dataset" and kept is not None else range(len(rows))
        for number in drawn[:MOST_RENDERED]:
            if time.monotonic() > deadline:
                break
            try:
                if by_number or reader.is_kept(rows[number], number):
                    check(reader.read(rows[number], number, (number, 0)))
            except DatasetError as error:
                raise DatasetError(f"{name}: {error}") from error.__cause__
    warn_of_open_turns(reader, data, ending)


def warn_of_open_turns(reader: PromptReader, data: GivenData, ending: Sequence[int]) -> None:
    """Warn where the chat template closes an answer with a token that ends no completion: the policy would go on."""
    first = data.firsts.get("train_dataset")
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


def known_tasks(dataset: Any, column: str, names: set[str]) -> tuple[str, list[str]]:
    """Return the task column and the tasks in it; an empty name where the column tells every row from the others.

    Args:
        names: tasks that rewards name; a column with one of them is what they take it for. Those that are found are added.
    """
    tasks = task_names(dataset, column)
    names |= set(tasks)
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
    if not callable(loss) or isinstance(loss, type):
        raise ConfigError(
            f"loss is {loss!r}; it must be a function of LossTerms that returns one loss per token, or an object that is called like one. A loss that has a name "
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
