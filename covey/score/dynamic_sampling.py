"""Dynamic sampling: groups without a signal are replaced by fresh prompts, up to a limit (DAPO, arXiv:2503.14476, 3.2).

Departure: an optimizer step always has the number of groups that the plan says. What is still without a signal when the
limit is reached stays, with advantages of 0, and counts in the denominators as it would without dynamic sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from covey.metrics import Mean, Metric
from covey.types import Gather, Prompt, ScoredGroup

Kind = Callable[[Prompt], object]
"""Prompt → what it has in common with those that it may stand for."""


@dataclass(frozen=True)
class Asked:
    """Completions that are to be sampled."""

    prompts: Sequence[Prompt]
    counts: Sequence[int] | None = None
    """Of each prompt; None: as many as all have at first."""
    first: int = 0
    """Number of the first of them."""


class DynamicSampling:
    """The groups of one round of sampling, those without a signal replaced as far as fresh prompts give some.

    Args:
        has_signal: whether a group teaches something.
        reserve: fresh prompts, taken from the front.
        limit: rounds of replacement at most; 0 keeps every group.
        gather: every process's value: rounds go on while any process misses a group.
        kind: of a prompt: a group is replaced by one of its kind. By default all are of one.
    """

    def __init__(
        self,
        has_signal: Callable[[ScoredGroup], bool],
        reserve: Sequence[Prompt],
        limit: int,
        gather: Gather,
        kind: Kind = lambda _: None,
    ) -> None:
        self.has_signal, self.reserve, self.limit, self.gather = has_signal, list(reserve), limit, gather
        self.kind = kind
        self.groups: list[ScoredGroup] = []
        """In the order in which they are trained on."""
        self.attempt: Sequence[ScoredGroup] | None = None
        """The groups that were taken in last; None: they wait for completions."""
        self.signals: list[bool] = []
        self.asked: list[int] = []
        """The positions that the groups which come next are to fill."""
        self.first_signals = self.rounds = 0

    @property
    def is_awaited(self) -> bool:
        """Whether all processes wait for one another when groups are taken in."""
        return bool(self.limit)

    def add(self, scored: Sequence[ScoredGroup]) -> Asked | None:
        """Take in scored groups, and return what to sample next, maybe of no prompt; None where it is over. Collective."""
        self.attempt = scored
        if not self.limit:
            self.groups = list(scored)
            return None
        if not self.signals:
            self.groups, self.signals = list(scored), [self.has_signal(group) for group in scored]
            self.first_signals = sum(self.signals)
        else:
            for group in (g for g in scored if self.has_signal(g)):
                places = (p for p in self.missing if self._fits(group, self.groups[p]))
                if (position := next(places, None)) is not None:
                    self.groups[position], self.signals[position] = group, True
        if not any(self.gather(len(self.missing))) or self.rounds == self.limit:  # once for each call
            return None
        self.rounds += 1
        return Asked(self._fresh())

    def _fresh(self) -> list[Prompt]:
        """Take a prompt from the reserve for each group without a signal, of its kind, as far as there are any."""
        self.asked, prompts = [], list[Prompt]()
        for position in self.missing:
            kind = self.kind(self.groups[position].group.prompt)
            found = next((n for n, prompt in enumerate(self.reserve) if self.kind(prompt) == kind), None)
            if found is not None:
                prompts.append(self.reserve.pop(found))
                self.asked.append(position)
        return prompts

    def _fits(self, group: ScoredGroup, other: ScoredGroup) -> bool:
        """Return whether a group may take the place of another one: it is of its size and kind."""
        are_equal = len(group.totals) == len(other.totals)
        return are_equal and self.kind(group.group.prompt) == self.kind(other.group.prompt)

    @property
    def missing(self) -> list[int]:
        """Return the positions of groups without a signal."""
        return [position for position, signal in enumerate(self.signals) if not signal]

    def metrics(self) -> dict[str, Metric]:
        """Return the shares of groups that had a signal and that were replaced; nothing where every group is kept."""
        if not self.limit:
            return {}
        count, replaced = len(self.groups), sum(self.signals) - self.first_signals
        return {
            "dynamic_sampling/signal_share": Mean(self.first_signals, count),
            "dynamic_sampling/replaced_share": Mean(replaced, count),
            "dynamic_sampling/rounds": Mean(self.rounds),
        }
