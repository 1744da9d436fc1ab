"""Environments: one instance per completion, reset before each episode, its public methods the tools.

TRL's protocol: a factory without arguments; `reset(**row)` returns what is appended to the prompt; `get_reward()` is a
reward. Beyond it: `seed` goes to a reset that names it, equal within a group; `done` ends the episode; `turn_reward` is what it
says of the turn that has called it; `close()` is called once per instance when the run ends.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from covey.errors import DatasetError, ToolError, warn
from covey.rewards.execution.loop import awaited
from covey.tools.result_text import IMAGE_KINDS, message_of
from covey.tools.tool_contract import Tool, by_name
from covey.types import PromptContent

COLUMN = "environment"
"""Column that selects the environment of a row, where there are several."""

Factory = Callable[[], Any]


@dataclass(frozen=True)
class EnvironmentKind:
    """One factory, and what its first instance told of it."""

    name: str | None
    """Its name in a dictionary; None: there is one factory."""
    factory: Factory
    kind: type
    tools: tuple[Tool, ...]

    @property
    def title(self) -> str:
        return self.kind.__name__

    @property
    def has_reward(self) -> bool:
        return callable(getattr(self.kind, "get_reward", None))

    @property
    def is_closed(self) -> bool:
        """Whether `close` belongs to the life of an instance, and is no tool."""
        return closes(self.kind)

    @cached_property
    def reset_parameters(self) -> Mapping[str, inspect.Parameter]:
        parameters = dict(inspect.signature(self.kind.reset).parameters)  # type: ignore[attr-defined]
        parameters.pop(next(iter(parameters), ""), None)  # self
        return parameters

    def reset_arguments(self, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Return what of a row goes to `reset`: all columns, or those that it names; and the seed, where it names that."""
        named = self.reset_parameters
        given = {name: value for name, value in row.items() if self.name is None or name != COLUMN}
        if not any(p.kind is p.VAR_KEYWORD for p in named.values()):
            given = {name: value for name, value in given.items() if name in named}
        if "seed" in named and "seed" not in given:
            given["seed"] = seed
        return copy.deepcopy(given)

    def missing_in(self, row: Mapping[str, Any]) -> list[str]:
        """Return arguments that `reset` insists on and the row does not have."""
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        needed = (
            name for name, p in self.reset_parameters.items() if p.default is p.empty and p.kind in by_name
        )
        return [name for name in needed if name not in row and name not in ("seed", "prompt")]


class Environments:
    """All environments of a run: what the factories make, and the instances that are free.

    Args:
        factory: makes an instance; or {name: factory}, of which the column `environment` selects one.

    Raises:
        ToolError: no factory, a class without `reset`, a method that cannot be a tool; what a factory raises.
    """

    def __init__(self, factory: Factory | Mapping[str, Factory]) -> None:
        named = dict(factory) if isinstance(factory, Mapping) else {None: factory}
        if not named:
            raise ToolError("environment_factory is empty. Give a class, or {name: class}.")
        self._made: list[tuple[EnvironmentKind, Any]] = []
        weakref.finalize(self, close_all, self._made)  # of a trainer that never trains nobody calls close
        self._free: dict[str | None, list[tuple[Any, Callable[[], bool]]]] = {}
        """Instances that nobody has, and whether a call that was given up still runs in each."""
        self.kinds: dict[str | None, EnvironmentKind] = {}
        for name, one in named.items():
            instance = made_by(one, name)
            kind = self.kinds[name] = kind_of(name, one, type(instance))
            self._made.append((kind, instance))
            self._free[name] = [(instance, lambda: False)]

    @property
    def names(self) -> list[str]:
        """Names that the column `environment` may hold; empty where there is one factory."""
        return [name for name in self.kinds if name is not None]

    @property
    def instances(self) -> list[Any]:
        """Every instance that has been made and not been closed."""
        return [instance for _, instance in self._made]

    def for_evaluation(self) -> Environments:
        """Return the same environments with instances of their own, so that evaluation changes nothing of training."""
        other = copy.copy(self)
        other._made, other._free = [], {name: [] for name in self.kinds}
        return other

    def selected(self, row: Mapping[str, Any], number: int | None = None) -> EnvironmentKind:
        """Return the kind of environment of a row.

        Raises:
            DatasetError: no column `environment`, an unknown name, or a row without what `reset` insists on.
        """
        where = "A row" if number is None else f"Row {number}"
        there = f"Environments are {', '.join(map(repr, self.names))}."
        kind = self.kinds.get(None)
        if kind is None:
            if COLUMN not in row:
                raise DatasetError(f"{where} has no column {COLUMN!r}, which names its environment. {there}")
            kind = self.kinds.get(row[COLUMN]) if isinstance(row[COLUMN], str) else None
            if kind is None:
                raise DatasetError(f"{where} has the environment {row[COLUMN]!r}, which is unknown. {there}")
        if missing := kind.missing_in(row):
            raise DatasetError(
                f"{where} has no column {', '.join(map(repr, missing))}, which {kind.title}.reset takes. Add it, or give it a default."
            )
        return kind

    def take(self, kind: EnvironmentKind) -> Any:
        """Return an instance that nobody has, and in which nothing runs."""
        free = self._free[kind.name]
        for place, (instance, is_in_use) in enumerate(free):
            if not is_in_use():
                del free[place]
                return instance
        instance = kind.factory()
        self._made.append((kind, instance))
        return instance

    def give_back(self, instance: object, is_in_use: Callable[[], bool] = lambda: False) -> None:
        """Take an instance back; the next episode may have it once `is_in_use` says False."""
        kind = next(kind for kind, one in self._made if one is instance)
        self._free[kind.name].append((instance, is_in_use))

    def rewards(self) -> list[Callable[..., Any]]:
        """Return one reward for each class that has `get_reward`, by the name of the class."""
        kinds = {kind.kind: kind for kind in self.kinds.values() if kind.has_reward}
        return [environment_reward(kind) for kind in kinds.values()]

    def close(self) -> None:
        """Close every instance, once. What `close` raises is told, and does not keep the others open."""
        self._free = {name: [] for name in self.kinds}
        close_all(self._made)


def close_all(made: list[tuple[EnvironmentKind, Any]]) -> None:
    """Take instances out of a list, and close them."""
    while made:
        kind, instance = made.pop(0)
        if not kind.is_closed:
            continue
        try:
            awaited(instance.close())
        except Exception as error:  # code of the user's, at the end of a run
            warn(f"{kind.title}.close() raised {type(error).__name__}: {message_of(error)}")


def made_by(factory: object, name: str | None) -> Any:
    """Return an instance; raise a ToolError that says which factory fails."""
    which = "environment_factory" if name is None else f"environment_factory[{name!r}]"
    if not callable(factory):
        raise ToolError(
            f"{which} is {type(factory).__name__} {repr(factory)[:80]}. It is a class, or a function without arguments that "
            "makes an instance."
        )
    try:
        return factory()
    except Exception as error:
        raise ToolError(f"{which} cannot make an instance: {type(error).__name__}: {error}") from error


def kind_of(name: str | None, factory: Factory, made: type) -> EnvironmentKind:
    """Return what a class tells of its instances, none of which is touched."""
    if not callable(getattr(made, "reset", None)):
        raise ToolError(
            f"Environment {made.__name__} has no method reset. It is called before each episode, with the row's columns: "
            "def reset(self, **row)."
        )
    own = {"reset", "get_reward", *(["close"] if closes(made) else [])}
    methods = [
        getattr(made, method)
        for method in sorted(dir(made))
        if not method.startswith("_") and method not in own and is_method(made, method)
    ]
    tools = tuple(Tool.of(method, is_method=True) for method in methods)
    by_name(tools)
    return EnvironmentKind(name, factory, made, tools)


def is_method(made: type, name: str) -> bool:
    """Return whether a name of a class is a function that instances can be asked for."""
    value = inspect.getattr_static(made, name)
    return inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)


def closes(made: type) -> bool:
    """Return whether `close` ends the life of an instance: it needs no argument, and describes itself as no tool does."""
    close = getattr(made, "close", None)
    if not callable(close) or not is_method(made, "close"):
        return False
    needed = [p for p in list(inspect.signature(close).parameters.values())[1:] if p.default is p.empty]
    described = any(section in (inspect.getdoc(close) or "") for section in ("Args:", "Returns:"))
    return not described and all(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in needed)


def environment_reward(kind: EnvironmentKind) -> Callable[..., Any]:
    """Return the reward that asks `get_reward` of each environment of this class, and says None of all others."""

    def reward(completions: list[Any], environments: list[Any], **others: Any) -> list[Any]:
        own: list[Any] = [e if type(e) is kind.kind else None for e in environments]
        return [None if e is None else awaited(e.get_reward()) for e in own]

    reward.__name__ = reward.__qualname__ = kind.title
    reward.of_environment = True  # type: ignore[attr-defined]  # `reward_weights` counts the functions that were given alone
    reward.__doc__ = f"Ask {kind.title}.get_reward() of each environment."
    return reward


def with_observation(content: PromptContent, observation: object, who: str) -> PromptContent:
    """Return a prompt with what `reset` said behind it: of a chat, appended to the content of the last message.

    Raises:
        ToolError: it is neither None, nor text, nor text in parts.
    """
    if observation is None:
        return content
    if isinstance(observation, str):
        added: Any = observation
    elif isinstance(observation, list) and all(
        isinstance(p, Mapping) and p.get("type") == "text" and isinstance(p.get("text"), str)
        for p in observation
    ):
        added = observation
    else:
        kinds = (
            [p.get("type") for p in observation if isinstance(p, Mapping)]
            if isinstance(observation, list)
            else []
        )
        what = "an image" if set(kinds) & set(IMAGE_KINDS) else f"{type(observation).__name__}"
        raise ToolError(
            f"{who}.reset returned {what}. This policy reads text only: return None, text, or a list of text parts."
        )
    if isinstance(content, str):
        return str(joined_content(content, added))
    return [*content[:-1], {**content[-1], "content": joined_content(content[-1].get("content"), added)}]


def joined_content(content: Any, added: Any) -> Any:
    """Return content with more behind it: text stays text, parts stay parts."""
    if isinstance(content, str) or content is None:
        return (content or "") + (added if isinstance(added, str) else "".join(p["text"] for p in added))
    return [*content, *([{"type": "text", "text": added}] if isinstance(added, str) else added)]
