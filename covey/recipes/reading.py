"""YAML text → nodes. Plain values only, by the rules of YAML 1.2's core schema (yaml.org/spec/1.2.2, section 10.3).

PyYAML's own loaders follow YAML 1.1, in which `no` is False, `1e-6` is text and `12:30` is 750. Here only `true` and
`false` are truth values, and a number is what looks like one. No tag makes an object.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from covey.errors import ConfigError
from covey.recipes.nodes import Mark, Node

MOST_VALUES = 20_000
"""Values that a recipe may have, those that aliases repeat included."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


class _Composer(yaml.SafeLoader):
    """Composes nodes and constructs nothing."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # PyYAML's own name; none of its rules


for _name, _pattern in _SCALARS.items():
    _Composer.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), None)


def read_yaml(text: str, source: str) -> Node:
    """The one document of a YAML text.

    Args:
        source: what messages call the text: its file.

    Raises:
        ConfigError: no YAML, a key that occurs twice, a tag, or more values than a recipe can have.
    """
    try:
        root = yaml.compose(text, Loader=_Composer)
        return _Converter(source).node(root) if root is not None else Node(None, Mark(source, 1))
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_complaint(error, source)) from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise ConfigError(f"{source}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: a value contains itself, or is nested too deeply.") from error


def read_value(text: str, source: str) -> Node:
    """A value as it would stand behind a colon; all of it has the same place."""
    node = read_yaml(text, source)
    return _moved(node, Mark(source))


class _Converter:
    """Turns PyYAML's nodes into ours, and counts them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.count = 0

    def node(self, node: yaml.Node, mark: Mark | None = None) -> Node:
        mark = mark or self._mark(node)
        self.count += 1
        if self.count > MOST_VALUES:
            raise ConfigError(f"{mark}: more than {MOST_VALUES} values; aliases count each time.")
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "seq", mark)
            return Node([self.node(item) for item in node.value], mark)
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, "map", mark)
            return Node(self._entries(node), mark)
        return Node(self._scalar(node, mark), mark)

    def _entries(self, node: yaml.MappingNode) -> dict[Any, Node]:
        entries: dict[Any, Node] = {}
        for key_node, value_node in node.value:
            mark = self._mark(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{mark}: a key is a list or a mapping; keys are text or numbers.")
            key = self._scalar(key_node, mark)
            if key in entries:
                raise ConfigError(f"{mark}: {key!r} is there already, in line {entries[key].mark.line}.")
            entries[key] = self.node(value_node, mark)
        return entries

    def _scalar(self, node: yaml.Node, mark: Mark) -> Any:
        text, tag = str(node.value), node.tag.removeprefix(_TAG)
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        try:
            if tag == "int":
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            if tag == "float":
                return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            raise ConfigError(f"{mark}: {text!r} is no {tag}.") from None
        self._check_tag(node, "str", mark)
        return text

    def _check_tag(self, node: yaml.Node, expected: str, mark: Mark) -> None:
        if node.tag != _TAG + expected:
            raise ConfigError(f"{mark}: the tag {node.tag!r} is not read. Write plain values.")

    def _mark(self, node: yaml.Node) -> Mark:
        return Mark(self.source, node.start_mark.line + 1)


def _moved(node: Node, mark: Mark) -> Node:
    if isinstance(node.value, list):
        return Node([_moved(part, mark) for part in node.value], mark)
    if isinstance(node.value, dict):
        return Node({key: _moved(part, mark) for key, part in node.value.items()}, mark)
    return Node(node.value, mark)


def _complaint(error: yaml.MarkedYAMLError, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{source}:{mark.line + 1}" if mark is not None else source
    said = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{place}: {said}."
