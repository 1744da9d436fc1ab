"""Numbers that `compute_metrics` makes of an evaluation: finite, and under names of their own."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

from covey.errors import ConfigError
from covey.rewards.results import number, shown
from covey.trainer.evaluation import ComputeMetrics, Evaluation
from covey.types import ScoredGroup


def check_compute_metrics(compute_metrics: object) -> bool:
    """Return whether there is such a function; raise where what was given cannot be called with an evaluation.

    Raises:
        ConfigError: it is no function.
    """
    if compute_metrics is not None and (not callable(compute_metrics) or isinstance(compute_metrics, type)):
        raise ConfigError(
            f"compute_metrics is {compute_metrics!r}; it must be a function of covey.trainer.evaluation.Evaluation that "
            "returns numbers by name."
        )
    return compute_metrics is not None


def more_numbers(
    compute_metrics: ComputeMetrics | None, groups: Sequence[ScoredGroup], known: Collection[str], prefix: str
) -> dict[str, float]:
    """Return the numbers that `compute_metrics` makes of an evaluation, by name; none without it.

    Args:
        known: names of the numbers that there are without it.
        prefix: of names in the log; it may stand in front of the names already.

    Raises:
        ConfigError: it raised, returned something else, or took a name that is there.
    """
    if compute_metrics is None:
        return {}
    taken = {*known, "runtime", "samples_per_second"}
    found = _called(compute_metrics, Evaluation.of(groups))
    return {_name(key, taken, prefix): _number(key, value) for key, value in found.items()}


def _called(compute_metrics: ComputeMetrics, evaluation: Evaluation) -> Mapping[object, object]:
    """Call the function; raise where it raises, or returns no mapping."""
    try:
        found: object = compute_metrics(evaluation)
    except Exception as error:
        raise ConfigError(
            f"compute_metrics raised {type(error).__name__}: {error}. It gets a covey.trainer.evaluation.Evaluation, which has "
            f"{', '.join(f.name for f in fields(Evaluation))}. The traceback above shows where."
        ) from error
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"compute_metrics returned {shown(found)}. Return a dictionary of numbers by name; an empty one says nothing."
        )
    return found


def _name(key: object, taken: Collection[str], prefix: str) -> str:
    """Return a name without the prefix; raise where it is taken."""
    name = str(key).removeprefix(f"{prefix}_")
    if name in taken:
        raise ConfigError(
            f"compute_metrics returned {key!r}, which is the name of a number that Covey logs itself as {prefix}_{name}. "
            "Give yours another name."
        )
    return name


def _number(key: object, value: object) -> float:
    """Return a value as a finite number; raise where it is none."""
    try:
        found = number(value)
    except (TypeError, ValueError, RuntimeError):
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(
            f"compute_metrics returned {shown(value)} as {key!r}. Return finite numbers; leave out what there is nothing to "
            "say of."
        )
    return found
