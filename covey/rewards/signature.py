"""What a reward takes: read from the callable that is called, not from one that it wraps."""

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
    if [p.kind for p in parameters] != PASS_ON:
        return parameters
    wrapper, owner = function, getattr(function, "__self__", None)
    if not hasattr(wrapper, "__wrapped__"):  # an object whose class has a wrapped __call__
        wrapper, owner = type(function).__call__, function
    inner = getattr(wrapper, "__wrapped__", None)
    if not callable(inner):
        return parameters
    if owner is not None and hasattr(inner, "__get__"):
        inner = inner.__get__(owner)
    within = open_parameters(inner)
    return within if judges(within) else parameters


def judges(parameters: list[Parameter]) -> bool:
    """Return whether a callable with these parameters gets to see completions, called by keyword."""
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return any(p.kind is p.VAR_KEYWORD or (p.name in SAMPLES and p.kind in by_name) for p in parameters)
