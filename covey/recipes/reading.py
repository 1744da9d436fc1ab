"""YAML text → nodes. Plain values only, by the rules of YAML 1.2's core schema (yaml.org/spec/1.2.2, section 10.3).

PyYAML's own loaders follow YAML 1.1, in which `no` is False, `1e-6` is text and `12:30` is 750. Here only `true` and
`false` are truth values, and a number is what looks like one. No tag makes an object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    """Read the one document of a YAML text; `source` is what messages call it: its file.

    Raises:
        ConfigError: no YAML, a key that occurs twice, a tag, or more values than a recipe can have.
    """
    try:
        root = yaml.compose(text, Loader=_Composer)
        return _Converter(source).node(root) if root is not None else Node(None, Mark(source, 1))
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        place = Mark(source, at.line + 1) if at is not None else source
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{place}: {problem}.") from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise ConfigError(f"{source}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: a value contains itself, or is nested too deeply.") from error


@dataclass
class _Converter:
    """Turns PyYAML's nodes into ours, and counts them."""

    source: str
    count: int = 0

    def node(self, node: yaml.Node, mark: Mark | None = None) -> Node:
        """Convert a node and everything below it; `mark` is the place of its key."""
        mark = mark or Mark(self.source, node.start_mark.line + 1)
        self.count += 1
        if self.count > MOST_VALUES:
            raise ConfigError(f"{mark}: more than {MOST_VALUES} values; aliases count each time.")
        if isinstance(node, yaml.SequenceNode):
            check_tag(node, "seq", mark)
            return Node([self.node(item) for item in node.value], mark)
        if not isinstance(node, yaml.MappingNode):
            return Node(scalar(node, mark), mark)
        check_tag(node, "map", mark)
        entries: dict[object, Node] = {}
        for key_node, value_node in node.value:
            place = Mark(self.source, key_node.start_mark.line + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{place}: a key is a list or a mapping; keys are text or numbers.")
            key = scalar(key_node, place)
            if key in entries:
                raise ConfigError(f"{place}: {key!r} is there already, in line {entries[key].mark.line}.")
            entries[key] = self.node(value_node, place)
        return Node(entries, mark)


def scalar(node: yaml.Node, mark: Mark) -> str | int | float | bool | None:
    """Return the value of a scalar.

    Raises:
        ConfigError: a tag of another kind, or one that the text does not fit.
    """
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
    check_tag(node, "str", mark)
    return text


def check_tag(node: yaml.Node, expected: str, mark: Mark) -> None:
    """Raise where a node has another tag than plain values of its kind have."""
    if node.tag != _TAG + expected:
        raise ConfigError(f"{mark}: the tag {node.tag!r} is not read. Write plain values.")
