"""`--set name=value`: a recipe with some values replaced.

learning_rate=1e-5          a setting of `train` or of `model`, by its name alone
data.arguments.count=100    any value, by its path; sections and mappings that are not there are made
rewards.countdown.weight=2  an item of a list, by its number (from 0), or by the reward or the name it says
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from covey.errors import ConfigError
from covey.recipes.nodes import Mark, Node, nearest, node_of
from covey.recipes.reading import read_value

NAMED_BY = ("name", "reward", "model")
"""Keys by which an item of a list can be called."""


def overridden(root: Node, override: str, sections: Sequence[str], settings: Mapping[str, str]) -> Node:
    """The recipe with one value replaced, or added.

    Args:
        override: `path=value`, the value written as YAML.
        sections: the sections of a recipe.
        settings: the section of a setting, by the setting's name.

    Raises:
        ConfigError: no `=`, or a path that leads nowhere.
    """
    path, separator, text = override.partition("=")
    if not separator or not path.strip():
        raise ConfigError(f"--set {override}: write --set NAME=VALUE; the recipe comes before --set.")
    parts = path.strip().split(".")
    if parts[0] not in sections:
        parts = [_section(parts[0], sections, settings, override), *parts]
    return _replaced(root, parts, read_value(text, f"--set {path.strip()}"))


def merged(node: Node, values: object, path: str = "") -> Node:
    """Return the node with plain values in place of its own: mappings are merged, anything else is replaced.

    Args:
        path: of the node in its recipe. Messages call a value by the option that would set it, `--set PATH`.

    Raises:
        ConfigError: a mapping in place of a value that is none.
    """
    if not isinstance(values, Mapping):
        return node_of(values, Mark(f"--set {path}"))
    entries: dict[Any, Node] = {}
    if isinstance(node.value, dict):
        entries |= node.value
    for name, value in values.items():
        here = f"{path}.{name}" if path else str(name)
        if node.value is not None and not isinstance(node.value, dict):
            raise ConfigError(f"--set {here}: there is no {name!r} in {node.value!r}, which is no mapping.")
        entries[name] = merged(entries.get(name, Node(None, Mark(f"--set {here}"))), value, here)
    return Node(entries, node.mark)


def _section(name: str, sections: Sequence[str], settings: Mapping[str, str], override: str) -> str:
    if name in settings:
        return settings[name]
    raise ConfigError(
        f"--set {override}: there is no setting {name!r}.{nearest(name, [*settings, *sections])}"
    )


def _replaced(node: Node, path: Sequence[str], new: Node) -> Node:
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(node.value, list):
        number = _number(node.value, first, new.mark)
        items = list(node.value)
        items[number] = _replaced(_as_mapping(items[number], rest), rest, new)
        return Node(items, node.mark)
    if node.value is not None and not isinstance(node.value, dict):
        raise ConfigError(f"{new.mark}: there is no {first!r} in {node.value!r}, which is no mapping.")
    entries: dict[Any, Node] = dict(node.value or {})
    entries[first] = _replaced(entries.get(first, Node(None, new.mark)), rest, new)
    return Node(entries, node.mark)


def _number(items: Sequence[Node], part: str, mark: Mark) -> int:
    """Which item a part of a path means."""
    if part.isdigit() and int(part) < len(items):
        return int(part)
    for number, item in enumerate(items):
        if part in _names(item):
            return number
    known = [name for item in items for name in _names(item)[:1]]
    raise ConfigError(f"{mark}: there is no item {part!r}; there are {len(items)}: {', '.join(known)}.")


def _names(item: Node) -> list[str]:
    """What an item is called: its name, or that of its reward without its module."""
    if isinstance(item.value, dict):
        return [str(item.value[key].value).rpartition(":")[2] for key in NAMED_BY if key in item.value]
    return [str(item.value).rpartition(":")[2]]


def _as_mapping(item: Node, rest: Sequence[str]) -> Node:
    """A reward that is said by its name alone, as a mapping that can take options."""
    return Node({"reward": item}, item.mark) if rest and isinstance(item.value, str) else item
