"""The form of rules, of their findings and of the hints that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from covey.runs.hints.history import History
from covey.types import ScoredGroup

Severity = Literal["problem", "warning", "note"]
"""`problem`: the run does not learn, or learns the wrong thing. `warning`: look at it. `note`: good to know."""

SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that one rule sees in a history at one moment."""

    title: str
    """The fault in one short sentence."""
    evidence: str
    """The numbers that say so."""
    advice: tuple[str, ...]
    """Remedies to try, the most likely first."""
    metrics: tuple[str, ...] = ()
    """Names of the curves to look at."""
    severity: Severity | None = None
    """Set where it differs from that of the rule."""
    subject: str = ""
    """Its object, where a rule can find several: the name of a reward."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A finding with the rule that made it and the steps over which it held."""

    rule: str
    severity: Severity
    title: str
    evidence: str
    advice: tuple[str, ...]
    metrics: tuple[str, ...]
    subject: str
    first_step: int
    last_step: int

    @property
    def key(self) -> tuple[str, str]:
        return self.rule, self.subject

    def text(self) -> str:
        """Return one line: what, why, and the first thing to try."""
        return f"{self.title} {self.evidence} {self.advice[0] if self.advice else ''}".strip()

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


Find = Callable[[History], list[Finding]]
"""Return what a rule finds in a history, an empty list for nothing."""

AtOnce = Callable[[Sequence[ScoredGroup]], str | None]
"""Return why the step that these groups are for changes nothing, or None."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A function over the history of a run, and how grave what it finds is."""

    find: Find
    severity: Severity
    at_once: AtOnce | None = None
    """The same fault at its worst, in the groups of one step; it is warned about before the step is taken."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.find.__name__)


def rule(severity: Severity, at_once: AtOnce | None = None) -> Callable[[Find], Rule]:
    """Return a decorator that makes a rule of a function."""
    return lambda find: Rule(find, severity, at_once)
