"""Checks of datasets and rewards, once, before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from covey.config import GRPOConfig
from covey.config.choices import LOSS_SETTINGS, LOSS_TYPES, REDUCTIONS
from covey.errors import ConfigError, DatasetError, RewardError, warn
from covey.rewards.batch import RESERVED
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture
from covey.sample.prompts import checked_content
from covey.trainer.data import column_names, is_map_style
from covey.update.terms import Loss

MOST_PROMPTS = 100_000
"""Rows whose prompts are looked at before a run; some seconds' work."""


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


def check_columns(rewards: Sequence[Reward], train_dataset: object, eval_dataset: object) -> None:
    """Raise where a required argument of a reward is no column of a dataset; a stream may not say before it is read.

    Raises:
        RewardError: one is missing.
    """
    for name, dataset in _named(train_dataset, eval_dataset).items():
        columns = None if dataset is None else column_names(dataset)
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


def check_prompts(train_dataset: object, eval_dataset: object) -> None:
    """Raise where a row has no prompt, as far as that is cheap to see: in lists, and in `datasets.Dataset`s without a format.

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
    """Return the rows of a dataset, or their prompts alone, as far as it gives them away at once."""
    if isinstance(dataset, list):
        return iter(dataset[:MOST_PROMPTS])
    is_table = is_map_style(dataset) and hasattr(dataset, "select_columns") and hasattr(dataset, "format")
    if is_table and "prompt" in dataset.column_names and dataset.format["type"] is None:
        return iter(dataset.select_columns(["prompt"]).select(range(min(len(dataset), MOST_PROMPTS))))
    return iter(())


def _named(train_dataset: object, eval_dataset: object) -> dict[str, object]:
    """Return the datasets by the names that messages call them."""
    parts = eval_dataset if isinstance(eval_dataset, dict) else None
    if parts is None:
        return {"train_dataset": train_dataset, "eval_dataset": eval_dataset}
    return {"train_dataset": train_dataset} | {f"eval_dataset[{n!r}]": part for n, part in parts.items()}


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
