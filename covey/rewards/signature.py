"""Arguments of a reward: read from the callable that is called, not from one that it wraps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter

SAMPLES = ("completions", "prompts", "completion_ids")
"""Arguments by which a reward sees what it judges; it takes at least one of them."""
PASS_ON = [Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD]
"""The kinds of `*args, **kwargs`."""


def open_parameters(function: Callable[..., object]) -> list[Parameter]:
    """Return the parameters that a call by keyword can fill; those bound by a partial are the user's business.

    `functools.wraps` points to another function, whose arguments may be others, so that it is not asked. A wrapper with
    nothing but `*args, **kwargs` hands on what it gets: there the reward inside says what it wants.

    Raises:
        ValueError: written in C, without a signature.
    """
    if isinstance(function, functools.partial) and not function.args:
        return [p for p in open_parameters(function.func) if p.name not in function.keywords]
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    inner = _inside(function) if [p.kind for p in parameters] == PASS_ON else None
    within = open_parameters(inner) if inner is not None else []
    return within if judges(within) else parameters


def _inside(function: Callable[..., object]) -> Callable[..., object] | None:
    """Return what `functools.wraps` points to, with the object that a method belongs to; None where there is nothing."""
    owner = getattr(function, "__self__", None)
    if not hasattr(function, "__wrapped__"):  # an object whose class has a wrapped __call__
        owner, function = function, type(function).__call__
    inner = getattr(function, "__wrapped__", None)
    if inner is not None and owner is not None and hasattr(inner, "__get__"):
        inner = inner.__get__(owner)
    return inner if callable(inner) else None


def judges(parameters: list[Parameter]) -> bool:
    """Return whether a callable with these parameters gets to see completions, called by keyword."""
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return any(p.kind is p.VAR_KEYWORD or (p.name in SAMPLES and p.kind in by_name) for p in parameters)
