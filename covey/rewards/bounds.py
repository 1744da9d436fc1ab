"""Bounds that the mean of a reward has to keep while the other rewards are maximised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.rewards.results import is_finite

if TYPE_CHECKING:
    from covey.rewards.options import RewardOptions

RATES = {"multiplier_step": "above 0", "multiplier_damping": "of at least 0", "multiplier_max": "above 0"}
"""Options that a multiplier is learned with, and which numbers they are."""
TWO_WEIGHTS = (
    "what it weighs is the multiplier that keeps its bound. Leave out the weight, or at_least and at_most."
)


@dataclass(frozen=True)
class Bound:
    """A bound on the mean of a reward, and how the multiplier that keeps it is learned; see `covey.score.constraints`."""

    limit: float
    """In the units of the reward."""
    sign: int
    """1: the mean is at least the limit; -1: at most."""
    step: float
    """Multiplier per unit of violation, added with each rollout."""
    damping: float
    """Multiplier per unit of violation in the last rollout alone."""
    largest: float
    """The multiplier is in [0, largest]."""

    def __str__(self) -> str:
        return f"{'at least' if self.sign > 0 else 'at most'} {self.limit:g}"


def bound_of(options: RewardOptions) -> Bound | None:
    """Return the bound that the options of a reward name; None: none."""
    rates = [float(getattr(options, name)) for name in RATES]
    if options.at_least is not None:
        return Bound(float(options.at_least), 1, *rates)
    return None if options.at_most is None else Bound(float(options.at_most), -1, *rates)


def fault_of_bound(options: RewardOptions) -> str | None:
    """Return why a bound, or what its multiplier is learned with, is no number, has no effect, or contradicts the rest; None: it does not."""
    limits = {n: v for n in ("at_least", "at_most") if (v := getattr(options, n)) is not None}
    rates = {name: getattr(options, name) for name in RATES}
    for name, value in (limits | rates).items():
        is_zero = name != "multiplier_damping" and name in RATES and value == 0
        if not is_finite(value) or is_zero or (name in RATES and value < 0):
            return f": {name}={value!r}; it is a number {RATES.get(name, 'that its mean can be')}."
    if len(limits) == 2:
        return " has at_least and at_most, which need a multiplier each. Give it twice, under two names, with one bound each."
    changed = [name for name, value in rates.items() if value != getattr(type(options), name)]
    if changed and not limits:
        return f": {changed[0]} has no effect without at_least or at_most."
    return f": {TWO_WEIGHTS}" if limits and options.weight not in (0.0, 1.0) else None
