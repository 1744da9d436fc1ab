"""The rewards of a recipe → a mixture.

rewards:
  - ThinkFormat                              # bundled, by name
  - reward: my_rewards:correct               # MODULE:NAME
    arguments: {gold: answer}
    weight: {schedule: linear, start: 0.0, end: 1.0, until: 0.5}
    tasks: math
    requires: think_format
  - model: path/to/reward-model              # a sequence classifier
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Any, NoReturn

from covey.errors import ConfigError, LoadingError, RewardError
from covey.recipes.bundled import BUNDLED
from covey.recipes.nodes import Node, nearest, shown
from covey.recipes.objects import Function, called, imported, made, named_reward
from covey.recipes.settings import named
from covey.rewards.mixture import Mixture
from covey.rewards.options import RewardOptions, reward_name, unique_names
from covey.tasks import assets

OPTIONS = tuple(field.name for field in fields(RewardOptions))
KEYS = ("reward", "model", "arguments", "name", *OPTIONS)

MIXTURE_KEYS = ("task_column", "on_error", "max_failure_rate", "min_coverage", "window", "unscored", "cache")

LoadModel = Callable[..., Function]
"""Name or folder of a reward model, and its arguments → the reward."""


def check_rewards_node(node: Node) -> None:
    """Check the form of a recipe's rewards; nothing is imported.

    Raises:
        ConfigError: an unknown key, or an item that names no reward, or two.
    """
    for item in node.items("rewards"):
        if isinstance(item.value, str):
            continue
        if not isinstance(item.value, dict):
            raise item.error(
                f"a reward is {shown(item.value)}; it must be a name, or a mapping with 'reward'."
            )
        item.entries("a reward", KEYS)
        if ("reward" in item.value) == ("model" in item.value):
            raise item.error("a reward is either 'reward: NAME' or 'model: FOLDER'; give one of the two.")


def make_mixture(rewards: Node, options: Node | None, task_column: str, load_model: LoadModel) -> Mixture:
    """Build the mixture that a recipe describes.

    Args:
        options: those of `Mixture`.
        task_column: used where `options` names none.
        load_model: loads reward models.

    Raises:
        ConfigError, RewardError: with the line that is wrong.
    """
    items = rewards.items("rewards")
    parts = [_reward(item, load_model) for item in items]
    given = {} if options is None else options.entries("mixture", MIXTURE_KEYS)
    if len(parts) == 1 and isinstance(parts[0], Mixture):
        if options is not None:
            raise options.error(
                f"'mixture' has no effect: {items[0].plain()} is a mixture with options of its own."
            )
        return parts[0]
    for part, item in zip(parts, items, strict=True):
        if isinstance(part, Mixture):
            raise item.error("a mixture cannot be part of another one. Give it alone, or list its rewards.")
    keywords: dict[str, Any] = {"task_column": task_column}
    keywords |= {key: entry.plain() for key, entry in given.items()}
    try:
        return Mixture(*parts, **keywords)
    except (ValueError, TypeError) as error:
        names = unique_names([reward_name(part) for part in parts])
        places = {**{repr(n): item for n, item in zip(names, items, strict=True)}, **given}
        raise named(str(error), places, options or rewards).error(str(error), RewardError) from error


def placeholder(path: str, /, **arguments: object) -> Function:
    """Return a reward in place of a reward model that is not loaded: it has the model's name, and cannot be called."""

    def unloaded(prompts: object, completions: object) -> NoReturn:
        raise AssertionError(f"{path} is not loaded")

    unloaded.__name__ = str(arguments.get("name") or PurePath(path).name)
    return unloaded


def _reward(item: Node, load_model: LoadModel) -> Function:
    """Return a reward of the list: with its options, or the object itself where there are none."""
    if isinstance(item.value, str):
        return made(named_reward(item), None, item.value)
    entries = item.entries("a reward")
    name = entries["name"].text("name") if "name" in entries else None
    if "model" in entries:
        function = _reward_model(entries, name, load_model)
        name = None  # the model has it
    else:
        node = entries["reward"]
        function = made(named_reward(node), entries.get("arguments"), node.text("reward"))
    options = {key: _option(key, entries[key]) for key in OPTIONS if key in entries}
    if not options and name is None:
        return function
    from covey.rewards import reward

    return called(reward, (function,), {"name": name, **options}, item, "the reward")


def _reward_model(entries: Mapping[str, Node], name: str | None, load_model: LoadModel) -> Function:
    """Load a reward model; errors have the line of its folder."""
    node, arguments = entries["model"], entries.get("arguments")
    keywords = {} if arguments is None else arguments.entries("arguments of a reward model")
    given = {key: entry.plain() for key, entry in keywords.items()}
    if name is not None:
        given["name"] = name
    try:
        named_so = node.text("model")
        return load_model(str(assets.REWARD_MODEL) if named_so == BUNDLED else named_so, **given)
    except (OSError, ValueError, TypeError) as error:
        kind = type(error) if isinstance(error, ConfigError) else ConfigError
        # A LoadingError names the model and the reason; other errors name neither.
        subject = f"the reward model {node.value!r} cannot be loaded: "
        raise node.error(f"{'' if isinstance(error, LoadingError) else subject}{error}", kind) from error


def _option(key: str, node: Node) -> object:
    """Return an option of a reward as `covey.rewards.reward` takes it."""
    if key == "tasks":
        return [item.text("tasks") for item in node.items("tasks")]
    if key == "when":
        return imported(node)
    if key == "weight":
        if not isinstance(node.value, dict) or "schedule" in node.value:
            return _weight(node)
        return {task: _weight(part) for task, part in node.entries("weight").items()}
    if key != "requires":
        return node.plain()
    gates: list[str | tuple[str, float]] = []  # a name, `{name: least value}`, or a list of either
    for item in node.items("requires"):
        if isinstance(item.value, dict):
            gates += [(name, least.number("requires")) for name, least in item.entries("requires").items()]
        else:
            gates.append(item.text("requires"))
    return gates


def _weight(node: Node) -> object:
    """Return a number, or a schedule: `{schedule: linear, start: 0, ...}`, or MODULE:FUNCTION of progress."""
    if not isinstance(node.value, dict):
        return node.number("weight")
    from covey.rewards.schedules import Cosine, Linear, Steps

    kinds: dict[str, Function] = {"linear": Linear, "cosine": Cosine, "steps": Steps}
    entries = dict(node.value)
    if "schedule" not in entries:
        raise node.error(f"a schedule says which it is: schedule: {', '.join(kinds)}, or MODULE:FUNCTION.")
    kind = entries.pop("schedule")
    name, rest = kind.text("schedule"), Node(entries, node.mark)
    if ":" in name:
        rest.entries(f"the schedule {name}", ())
        return imported(kind)
    if name not in kinds:
        raise kind.error(
            f"there is no schedule {name!r}.{nearest(name, kinds)} It is one of {', '.join(kinds)}."
        )
    return made(kinds[name], rest, f"the schedule {name}")
