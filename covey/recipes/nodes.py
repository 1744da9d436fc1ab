"""A value that knows where it was written, so that an error about it can name the line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from covey.errors import ConfigError, CoveyError


@dataclass(frozen=True, slots=True)
class Mark:
    """A place: a line of a file, or an option of the command line."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a list of nodes, or a mapping whose values are nodes; with its place."""

    value: object
    mark: Mark
    """Of an entry of a mapping: where its key stands."""

    def plain(self) -> object:
        """Return the value without places."""
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return self.value

    def walk(self) -> Iterator[Node]:
        """Yield this node and every node below it."""
        yield self
        if isinstance(self.value, list | dict):
            for node in self.value.values() if isinstance(self.value, dict) else self.value:
                yield from node.walk()

    def error(self, message: str, kind: type[CoveyError] = ConfigError) -> CoveyError:
        """Return an error that begins with this place."""
        return kind(f"{self.mark}: {message}")

    def entries(self, what: str, known: Iterable[str] | None = None) -> dict[str, Node]:
        """Return the entries of a mapping.

        Args:
            what: what the mapping is, for messages.
            known: the keys that may occur; None: any text.

        Raises:
            ConfigError: no mapping, or a key that is not known.
        """
        if not isinstance(self.value, dict):
            raise self.error(f"{what} is {shown(self.value)}; it must be a mapping of names to values.")
        names = None if known is None else list(known)
        for key, node in self.value.items():
            if not isinstance(key, str):
                raise node.error(f"{what} has the key {key!r}; keys are text. Put it in quotes.")
            if names is not None and key not in names:
                hint = nearest(key, names) or f" It has {', '.join(names)}."
                raise node.error(f"{what} has no {key!r}.{hint}")
        return self.value

    def items(self, what: str) -> list[Node]:
        """Return the items of a list; a single value is a list of one.

        Raises:
            ConfigError: an empty list.
        """
        if not isinstance(self.value, list):
            return [self]
        if not self.value:
            raise self.error(f"{what} is empty.")
        return self.value

    def text(self, what: str) -> str:
        """Return the text that this is.

        Raises:
            ConfigError: something else.
        """
        if not isinstance(self.value, str) or not self.value:
            raise self.error(f"{what} is {shown(self.value)}; it must be text.")
        return self.value

    def number(self, what: str) -> float:
        """Return the number that this is.

        Raises:
            ConfigError: something else.
        """
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.error(f"{what} is {shown(self.value)}; it must be a number.")
        return self.value

    def flag(self, what: str) -> bool:
        """Return the truth value that this is.

        Raises:
            ConfigError: something else.
        """
        if not isinstance(self.value, bool):
            raise self.error(f"{what} is {shown(self.value)}; it must be true or false.")
        return self.value


def node_of(value: object, mark: Mark) -> Node:
    """Build a node from plain values; all of it has the same place."""
    if isinstance(value, Mapping):
        return Node({key: node_of(part, mark) for key, part in value.items()}, mark)
    if isinstance(value, list | tuple):
        return Node([node_of(part, mark) for part in value], mark)
    return Node(value, mark)


def nearest(word: object, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the known words that come close; empty where none does."""
    close = difflib.get_close_matches(str(word), list(known), n=3)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def shown(value: object) -> str:
    """Return a value as a message shows it: its kind where it is large."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
