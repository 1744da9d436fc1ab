"""`--set name=value`: a recipe with some values replaced.

learning_rate=1e-5          a setting of `train` or of `model`, by its name alone
data.arguments.count=100    any value, by its path; sections and mappings that are not there are made
rewards.countdown.weight=2  an item of a list, by its number (from 0), by its name, or by its reward
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from covey.errors import ConfigError
from covey.recipes.nodes import Mark, Node, nearest, node_of
from covey.recipes.reading import read_yaml

NAMED_BY = ("name", "reward", "model")
"""Keys by which an item of a list can be called."""


def overridden(root: Node, override: str, sections: Sequence[str], settings: Mapping[str, str]) -> Node:
    """Return the recipe with one value replaced, or added: `path=value`, the value written as YAML.

    Args:
        settings: the section of a setting, by the setting's name.

    Raises:
        ConfigError: no `=`, or a path that leads nowhere.
    """
    path, separator, text = override.partition("=")
    if not separator or not path.strip():
        raise ConfigError(f"--set {override}: write --set NAME=VALUE; the recipe comes before --set.")
    parts = path.strip().split(".")
    if parts[0] not in sections:
        if parts[0] not in settings:
            hint = nearest(parts[0], [*settings, *sections])
            raise ConfigError(f"--set {override}: there is no setting {parts[0]!r}.{hint}")
        parts = [settings[parts[0]], *parts]
    option = f"--set {path.strip()}"
    return _replaced(root, parts, node_of(read_yaml(text, option).plain(), Mark(option)))


def _replaced(node: Node, path: Sequence[str], new: Node) -> Node:
    """Return the node with another value at the path."""
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(node.value, list):
        items = list(node.value)
        number = _item_number(items, first, new.mark)
        item = items[number]
        if rest and isinstance(item.value, str):  # a reward's name alone becomes a mapping that takes options
            item = Node({"reward": item}, item.mark)
        items[number] = _replaced(item, rest, new)
        return Node(items, node.mark)
    entries = _entries(node, first, new.mark)
    entries[first] = _replaced(entries.get(first, Node(None, new.mark)), rest, new)
    return Node(entries, node.mark)


def _item_number(items: Sequence[Node], part: str, mark: Mark) -> int:
    """Return the position of the item that a part of a path means: by number, by name, or by its reward's name."""
    if part.isdigit() and int(part) < len(items):
        return int(part)
    names: list[list[str]] = []
    for item in items:
        values = [item]
        if isinstance(item.value, dict):
            values = [item.value[key] for key in NAMED_BY if key in item.value]
        names.append([str(value.value).rpartition(":")[2] for value in values])  # without its module
    for number, own in enumerate(names):
        if part in own:
            return number
    known = ", ".join(name for own in names for name in own[:1])
    raise ConfigError(f"{mark}: there is no item {part!r}; there are {len(items)}: {known}.")


def _entries(node: Node, name: object, mark: Mark) -> dict[object, Node]:
    """Return a copy of a mapping's entries, in which `name` is to be replaced; nothing counts as an empty mapping."""
    if node.value is None:
        return {}
    if not isinstance(node.value, dict):
        raise ConfigError(f"{mark}: there is no {name!r} in {node.value!r}, which is no mapping.")
    return dict(node.value)


def merged(node: Node, values: object, path: str = "") -> Node:
    """Return the node with plain values in place of its own: mappings are merged, anything else is replaced.

    Args:
        path: of the node in its recipe. Messages call a value by the option that would set it, `--set PATH`.

    Raises:
        ConfigError: a mapping in place of a value that is none.
    """
    if not isinstance(values, Mapping):
        return node_of(values, Mark(f"--set {path}"))
    for name, value in values.items():
        here = f"{path}.{name}" if path else str(name)
        mark = Mark(f"--set {here}")
        entries = _entries(node, name, mark)
        entries[name] = merged(entries.get(name, Node(None, mark)), value, here)
        node = Node(entries, node.mark)
    return node
