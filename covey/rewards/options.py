"""Name and terms of a reward in a mixture: which rows, what weight, after which gate, with which deadline."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from covey.errors import RewardError
from covey.rewards.bounds import Bound, bound_of, fault_of_bound
from covey.rewards.results import is_finite
from covey.rewards.schedules import Weight

Where = Literal["inline", "thread", "process", "sandbox"]
"""Place that a reward runs in, which decides what a deadline can mean.

`inline`   in the trainer's own thread. It cannot be interrupted, so it takes no deadline
`thread`   in a thread. At the deadline it is given up: its result is dropped, but it runs on
`process`  in a process of its own. At the deadline it is killed, with all memory that it held
`sandbox`  in a locked process: the function's source is run there, so it must stand alone and use the standard library
A coroutine function runs on an event loop; at the deadline it is cancelled where it next awaits.
"""

Scope = Literal["sample", "group"]
OnError = Literal["raise", "missing", "zero"] | float
Requires = str | tuple[str, float] | Iterable[str | tuple[str, float]] | None
"""Gates as users write them: names of rewards, or (name, least value)."""
Row = Mapping[str, Any]
"""A dataset row as `when` sees it: its columns, and `prompt`."""

DECORATED = "reward_options"
"""The attribute in which `@reward` leaves (name, options)."""


@dataclass(frozen=True)
class RewardOptions:
    """The terms of one reward. The defaults are those of a plain function in a list."""

    weight: Weight = 1.0
    """Number, schedule over training (see `covey.rewards.schedules`), or either of them by task. With a bound 0: where no multiplier
    is learned, it is a metric."""
    tasks: frozenset[str] | None = None
    """The tasks that it applies to, by the mixture's task column; None: all."""
    when: Callable[[Row], bool] | None = None
    """The test of whether it applies to a row."""
    present: str | None = None
    """A column that must hold something for it to apply."""
    requires: tuple[tuple[str, float], ...] = ()
    """Gates: (name of another reward, least value). Where one does not hold, this reward is not run and counts as 0."""
    where: Where = "inline"
    timeout: float | None = None
    """Seconds per call."""
    sample_timeout: float | None = None
    """Seconds per sample; in a process or the sandbox. The function is then called with one sample at a time."""
    on_error: OnError = "raise"
    """The effect of a raised exception, a broken contract or a deadline: `raise` stops the run; `missing` leaves the sample
    out; `zero`, or a number, is the sample's score."""
    scope: Scope = "sample"
    """`group`: called once per group, with all its completions and nothing else."""
    optional: bool = False
    """A failure drops only this reward, not the sample."""
    pure: bool = False
    """Depends on the row and its completion alone, and always returns the same: equal samples are scored once."""
    at_least: float | None = None
    """Least value of its mean, which a multiplier keeps that is learned: the reward weighs as much."""
    at_most: float | None = None
    """Largest value of its mean; the reward weighs minus the multiplier."""
    multiplier_step: float = 0.1
    """Multiplier per unit by which the mean misses its bound, added with each rollout. The defaults suit rewards whose values are about 1 apart."""
    multiplier_damping: float = 2.0
    """Multiplier per unit by which the mean missed its bound in the last rollout: what keeps it from swinging."""
    multiplier_max: float = 10.0
    """Largest multiplier."""

    @property
    def bound(self) -> Bound | None:
        """Return the bound on its mean; None: none."""
        return bound_of(self)

    @classmethod
    def of(cls, name: str, **given: Any) -> RewardOptions:
        """Return options as users write them, checked.

        Raises:
            RewardError: an option that does not exist, a wrong value, or a deadline that could not be kept.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise RewardError(
                f"Reward {name!r}: there is no option {', '.join(map(repr, unknown))}. Options are "
                f"{', '.join(sorted(known))}."
            )
        tasks = given.get("tasks")
        if tasks is not None:
            given["tasks"] = frozenset({tasks} if isinstance(tasks, str) else tasks)
        if "requires" in given:
            given["requires"] = _gates(name, given["requires"])
        options = cls(**given)
        options._check(name)
        return options if options.bound is None else replace(options, weight=0.0)

    def _check(self, name: str) -> None:
        who = f"Reward {name!r}"
        if fault := fault_of_bound(self):
            raise RewardError(who + fault)
        for option, choices in (("where", get_args(Where)), ("scope", get_args(Scope))):
            if (value := getattr(self, option)) not in choices:
                raise RewardError(f"{who}: {option}={value!r}; {option} is one of {', '.join(choices)}.")
        if not (self.on_error in ("raise", "missing", "zero") or is_finite(self.on_error)):
            raise RewardError(
                f"{who}: on_error={self.on_error!r}; it is 'raise', 'missing', 'zero' or a number."
            )
        for option, value in (("timeout", self.timeout), ("sample_timeout", self.sample_timeout)):
            if value is not None and not (is_finite(value) and value > 0):
                raise RewardError(f"{who}: {option}={value!r}; it is a number of seconds above 0.")
        if self.sample_timeout is not None and self.where not in ("process", "sandbox"):
            raise RewardError(
                f"{who}: sample_timeout needs where='process' or where='sandbox'; with {self.where!r} a single sample cannot "
                "be stopped."
            )
        if self.sample_timeout is not None and self.scope == "group":
            raise RewardError(f"{who}: sample_timeout and scope='group' exclude each other; use timeout.")


def reward_name(function: object) -> str:
    """Return the name of a reward in metrics and records.

    That of its decorator; its `name` or `__name__`; of a partial that of the function inside; of an object that of its
    class.
    """
    decorated = getattr(function, DECORATED, None)
    if decorated is not None:
        return str(decorated[0])
    while isinstance(function, functools.partial):
        function = function.func
    for attribute in ("name", "__name__"):
        name = getattr(function, attribute, None)
        if isinstance(name, str) and name:
            return "lambda" if name == "<lambda>" else name
    return type(function).__name__


def unique_names(names: Sequence[str]) -> list[str]:
    """Return `a, a_2, b` for `a, a, b`, so that no two rewards share a metric."""
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        unique.append(candidate)
    return unique


def _gates(name: str, requires: Requires) -> tuple[tuple[str, float], ...]:
    """Return one gate or several, each a name or (name, least value), as pairs; a bare name must be above 0."""
    is_pair = isinstance(requires, tuple) and len(requires) == 2 and not isinstance(requires[1], str | tuple)
    listed: Any = [requires] if isinstance(requires, str) or is_pair else list(requires or ())
    gates = []
    for gate in listed:
        gate_name, least = (gate, math.ulp(0.0)) if isinstance(gate, str) else gate
        if not isinstance(gate_name, str) or not is_finite(least):
            raise RewardError(
                f"Reward {name!r}: requires={requires!r}; give a reward's name, (name, least value), or a list of them."
            )
        gates.append((gate_name, float(least)))
    return tuple(gates)
