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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from covey.errors import ConfigError, LoadingError, RewardError
from covey.recipes.nodes import Node, nearest, shown
from covey.recipes.objects import bundled_rewards, called, imported, keyword_arguments, made, named_object
from covey.recipes.settings import named
from covey.rewards.mixture import Mixture
from covey.rewards.options import RewardOptions, reward_name, unique_names

OPTIONS = tuple(field.name for field in fields(RewardOptions))
KEYS = ("reward", "model", "arguments", "name", *OPTIONS)

MIXTURE_KEYS = ("task_column", "on_error", "max_failure_rate", "min_coverage", "window", "unscored", "cache")

LoadModel = Callable[..., Any]
"""Name or folder of a reward model, and its arguments → the reward."""


def check_rewards_node(node: Node) -> None:
    """Whether the rewards of a recipe are said as they must be; nothing is imported.

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
    """The mixture that a recipe describes.

    Args:
        options: those of `Mixture`.
        task_column: where `options` does not say it.
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
    keywords = {"task_column": task_column, **{key: entry.plain() for key, entry in given.items()}}
    try:
        return Mixture(*parts, **keywords)
    except (ValueError, TypeError) as error:
        names = unique_names([reward_name(part) for part in parts])
        places = {**{repr(n): item for n, item in zip(names, items, strict=True)}, **given}
        raise named(str(error), places, options or rewards).error(str(error), RewardError) from error


def placeholder(path: str, /, **arguments: Any) -> Any:
    """Stands for a reward model that is not to be loaded: has its name, and cannot be called."""

    def unloaded(prompts: Any, completions: Any) -> Any:
        raise AssertionError(f"{path} is not loaded")

    unloaded.__name__ = str(arguments.get("name") or PurePath(path).name)
    return unloaded


def _reward(item: Node, load_model: LoadModel) -> Any:
    """One item: a reward with its options, or what it names as it is."""
    if isinstance(item.value, str):
        return made(named_object(item, bundled_rewards(), "reward"), None, item.value)
    entries = item.value
    function = _function(entries, load_model)
    options = {name: _OPTION.get(name, Node.plain)(entries[name]) for name in OPTIONS if name in entries}
    name = entries["name"].text("name") if "name" in entries and "reward" in entries else None
    if not options and name is None:
        return function
    from covey.rewards import reward

    return called(reward, (function,), {"name": name, **options}, item, "the reward")


def _function(entries: Mapping[str, Node], load_model: LoadModel) -> Any:
    arguments = entries.get("arguments")
    if "reward" in entries:
        node = entries["reward"]
        return made(named_object(node, bundled_rewards(), "reward"), arguments, node.value)
    node = entries["model"]
    keywords = {} if arguments is None else arguments.entries("arguments of a reward model")
    given = {key: entry.plain() for key, entry in keywords.items()}
    if "name" in entries:
        given["name"] = entries["name"].text("name")
    try:
        return load_model(node.text("model"), **given)
    except (OSError, ValueError, TypeError) as error:
        kind = type(error) if isinstance(error, ConfigError) else ConfigError
        # A LoadingError names the model and says why; what else comes speaks of neither.
        what = (
            "" if isinstance(error, LoadingError) else f"the reward model {node.value!r} cannot be loaded: "
        )
        raise node.error(f"{what}{error}", kind) from error


def _weight(node: Node) -> Any:
    """A number, a schedule, or either of them by task."""
    if not isinstance(node.value, dict):
        return _number(node, "weight")
    if "schedule" in node.value:
        return _schedule(node)
    return {
        task: _schedule(part) if isinstance(part.value, dict) else _number(part, "weight")
        for task, part in node.entries("weight").items()
    }


def _schedule(node: Node) -> Any:
    """`{schedule: linear, start: 0, end: 1, ...}`, or `{schedule: MODULE:FUNCTION}`, a function of progress."""
    import covey.rewards.schedules as schedules

    kinds = {"linear": schedules.Linear, "cosine": schedules.Cosine, "steps": schedules.Steps}
    entries = dict(node.value)
    if "schedule" not in entries:
        raise node.error(f"a schedule says which it is: schedule: {', '.join(kinds)}, or MODULE:FUNCTION.")
    kind = entries.pop("schedule")
    rest = Node(entries, node.mark)
    if ":" in kind.text("schedule"):
        rest.entries(f"the schedule {kind.value}", ())
        return imported(kind)
    if kind.value not in kinds:
        raise kind.error(
            f"there is no schedule {kind.value!r}.{nearest(kind.value, kinds)} It is one of {', '.join(kinds)}."
        )
    keywords = keyword_arguments(kinds[kind.value], rest, f"the schedule {kind.value}")
    return called(kinds[kind.value], (), keywords, rest, f"the schedule {kind.value}")


def _gates(node: Node) -> list[Any]:
    """A name, `{name: least value}`, or a list of either."""
    gates: list[Any] = []
    for item in node.items("requires"):
        if isinstance(item.value, dict):
            gates += [(name, _number(least, "requires")) for name, least in item.entries("requires").items()]
        else:
            gates.append(item.text("requires"))
    return gates


def _tasks(node: Node) -> list[str]:
    return [item.text("tasks") for item in node.items("tasks")]


def _number(node: Node, what: str) -> float:
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        raise node.error(f"{what} is {shown(node.value)}; it must be a number.")
    return node.value


_OPTION: Mapping[str, Callable[[Node], Any]] = {
    "weight": _weight,
    "requires": _gates,
    "tasks": _tasks,
    "when": imported,
}


def reward_nodes(rewards: Node, names: Sequence[str]) -> dict[str, Node]:
    """Where each reward of the mixture stands, by the name that it has there."""
    items = rewards.items("rewards")
    return dict(zip(names, items, strict=True)) if len(items) == len(names) else {}
