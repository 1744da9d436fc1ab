"""Environments of OpenEnv: a client with `reset`, `step` and `close` becomes an environment whose one tool is a step.

Needs no package itself: whatever has these methods will do, plain or async. A step's result has `observation`, `reward` and `done`.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from covey.errors import ToolError
from covey.rewards.execution.loop import awaited
from covey.tools.decorator import tool
from covey.tools.result_text import as_json

KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
NOT_SHOWN = ("reward", "done", "metadata")
"""Fields of an observation that the policy does not read."""


class OpenEnvironment:
    """One client in the form of an environment; see `from_openenv`."""

    _connect: Callable[[], Any]
    _action: Callable[..., Any]
    _shown: Callable[[Any], str]

    def __init__(self) -> None:
        self._client = type(self)._connect()
        self._rewards: list[float] = []
        self.turn_reward: float | None = None
        """What the last step gave."""
        self.done = False

    def reset(self, seed: int | None = None, **row: Any) -> str:
        self._rewards, self.turn_reward, self.done = [], None, False
        takes = inspect.signature(self._client.reset).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in takes.values())
        given = {"seed": seed} if seed is not None and ("seed" in takes or takes_all) else {}
        return self._seen(awaited(self._client.reset(**given)))

    def get_reward(self) -> float:
        return sum(self._rewards)

    def close(self) -> None:
        close = getattr(self._client, "close", None)
        if close is not None:
            awaited(close())

    def _step(self, arguments: Mapping[str, Any]) -> str:
        if self.done:
            raise ToolError("the episode is over")
        return self._seen(awaited(self._client.step(type(self)._action(**arguments))))

    def _seen(self, result: Any) -> str:
        """Take in the result of a step; return what the policy reads."""
        reward = getattr(result, "reward", None)
        if reward is not None:
            self.turn_reward = float(reward)
            self._rewards.append(self.turn_reward)
        self.done = bool(getattr(result, "done", False))
        return type(self)._shown(getattr(result, "observation", result))


def from_openenv(
    connect: Callable[[], Any],
    action: Callable[..., Any],
    *,
    name: str = "step",
    description: str | None = None,
    arguments: Mapping[str, str] | None = None,
    text: Callable[[Any], str] | None = None,
    title: str = "OpenEnv",
    **options: Any,
) -> type[OpenEnvironment]:
    """Return an environment class, to be given as `environment_factory=`. The rewards of its steps sum up to its reward.

    Args:
        connect: makes a client; called once per environment.
        action: makes an action from arguments by name, as its dataclass does; they are those of the tool.
        name: of the tool.
        description: of the tool; None: the docstring of `action`.
        arguments: descriptions of the arguments.
        text: observation → what the policy reads; None: itself where it is text, else its fields as JSON.
        title: name of the class, and of its reward.
        options: terms of `covey.tools.tool`, such as `where="thread"`.

    Raises:
        ToolError: an action whose arguments cannot be known, or a description of one that it does not take.
    """
    parameters = action_parameters(action, arguments or {})
    told = description or inspect.getdoc(action) or "Takes a step."

    def step(self: OpenEnvironment, **given: Any) -> str:
        return self._step(given)

    step.__name__ = step.__qualname__ = name
    step.__doc__ = told
    schema = {"description": told, "parameters": parameters}
    members = {
        "_connect": staticmethod(connect),
        "_action": staticmethod(action),
        "_shown": staticmethod(text or observation_text),
        name: tool(schema=schema, **options)(step),
    }
    return type(title, (OpenEnvironment,), members)


def action_parameters(action: Callable[..., Any], told: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON schema of the arguments of an action."""
    if callable(schema := getattr(action, "model_json_schema", None)):
        made: dict[str, Any] = schema()
        properties = {k: v for k, v in made.get("properties", {}).items() if k not in NOT_SHOWN}
        required = [name for name in made.get("required", ()) if name in properties]
    else:
        is_plain = not inspect.isclass(action) or dataclasses.is_dataclass(action)
        try:
            signature = inspect.signature(action)
            hints = typing.get_type_hints(action if is_plain else action.__init__)
        except (TypeError, ValueError, NameError) as error:
            raise ToolError(
                f"from_openenv: the arguments of {action!r} cannot be known: {error}. Give a dataclass, or a function with hints."
            ) from error
        taken = {
            n: p
            for n, p in signature.parameters.items()
            if n not in NOT_SHOWN and p.kind is not p.VAR_KEYWORD
        }
        properties = {name: kind_of_hint(hints.get(name)) for name in taken}
        required = [name for name, p in taken.items() if p.default is p.empty]
    if unknown := sorted(set(told) - set(properties)):
        raise ToolError(
            f"from_openenv: arguments describes {', '.join(map(repr, unknown))}, and the action takes {', '.join(properties) or 'none'}."
        )
    described = {
        n: {"description": told.get(n, ""), **v} | ({"description": told[n]} if n in told else {})
        for n, v in properties.items()
    }
    return {"type": "object", "properties": described, "required": required}


def kind_of_hint(hint: Any) -> dict[str, Any]:
    """Return the schema of a type hint; empty where any value will do."""
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        return {"type": KINDS.get(type(options[0]), "string"), "enum": list(options)}
    if typing.get_origin(hint) in (list, tuple):
        return {"type": "array", "items": kind_of_hint(options[0]) if options else {}}
    if type(None) in typing.get_args(hint) and len(options) == 1:
        return {**kind_of_hint(options[0]), "nullable": True}
    kind = KINDS.get(typing.get_origin(hint) or hint)
    return {"type": kind} if kind else {}


def observation_text(observation: Any) -> str:
    """Return what the policy reads of an observation: text as it is, of an object its fields as JSON."""
    if isinstance(observation, str) or observation is None:
        return observation or ""
    if callable(dump := getattr(observation, "model_dump", None)):
        fields = dump()
    elif dataclasses.is_dataclass(observation) and not isinstance(observation, type):
        fields = dataclasses.asdict(observation)
    elif isinstance(observation, Mapping):
        fields = dict(observation)
    else:
        return str(observation)
    shown = {name: value for name, value in fields.items() if name not in NOT_SHOWN}
    only = next(iter(shown.values())) if len(shown) == 1 else None
    return only if isinstance(only, str) else as_json(shown)
