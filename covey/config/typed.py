"""Numbers and switches of a GRPOConfig are what their annotations say, before anything computes with them.

Raises:
    ConfigError: a setting is of another kind, or a number that nothing can be computed with.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import TrainingArguments

from covey.config.kinds import describe, fits_any, kinds_of, options
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

CHECKED: set[Any] = {int, float, bool, type(None), list[float]}
"""Kinds that say all that a setting takes. What else there is, other checks know better."""

MAY_BE_INFINITE = ("epsilon_high", "covariance_high")
"""Upper bounds of which None is not the absence; infinity is."""


def check_kinds(config: GRPOConfig, cls: type) -> None:
    """A number is a number and not text, a whole one is whole, a switch is true or false.

    None passes for settings of TrainingArguments: for some of them that is another way to say no.

    Args:
        cls: GRPOConfig itself: what a class derived from it adds is its own affair.
    """
    inherited = {f.name for f in fields(TrainingArguments)}
    for name, kind in kinds_of(cls).items():
        value = getattr(config, name)
        if isinstance(value, np.generic):  # the same number, as other checks and JSON know it
            value = value.item()
            setattr(config, name, value)
        if not set(options(kind)) <= CHECKED or (value is None and name in inherited):
            continue
        if not fits_any(list(value) if isinstance(value, tuple) else value, kind):
            raise ConfigError(
                f"{name} is {value!r}; it must be {describe(kind, 'None')}.{_hint(value, kind)}"
            )


def check_finite(config: GRPOConfig) -> None:
    """Covey's own numbers and the learning rate are finite, but for `MAY_BE_INFINITE`."""
    inherited = {f.name for f in fields(TrainingArguments)} - {"learning_rate"}
    for name in [f.name for f in fields(config) if f.name not in inherited]:
        value = getattr(config, name)
        for number in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(number, float) or math.isfinite(number):
                continue
            if not (number == math.inf and name in MAY_BE_INFINITE):
                raise ConfigError(f"{name} is {value}; it must be finite.")


def _hint(value: Any, kind: Any) -> str:
    """What helps where a number came as text."""
    if not isinstance(value, str) or (not {int, float} & set(options(kind))):
        return ""
    try:
        float(value)
    except ValueError:
        return ""
    return f" Leave out the quotes: {value.strip()}."
