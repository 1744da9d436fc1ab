"""The second half of a round of sampling where groups grow: which prompts get more completions, and their groups put together.

    first completions of every prompt → scored → all processes tell which groups are solved → the others get more → scored

Processes share one budget, that of an optimizer step, so that a run is the same however many they are. State is the rollout's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from covey.metrics import Metric
from covey.plan import Plan, cut
from covey.score.allocation import grown, grown_sizes, growth_metrics
from covey.score.dynamic_sampling import Asked, DynamicSampling
from covey.types import Group, Growth, Prompt, ScoredGroup


@dataclass(frozen=True)
class GroupGrowth:
    """Decides how large groups become.

    Args:
        plan: of the run.
        rank: this process.
        succeeds: which completions of a group succeed.
        alike: gives groups of one prompt that began differently one start.
    """

    plan: Plan
    rank: int
    succeeds: Callable[[ScoredGroup], tuple[bool, ...]]
    alike: Callable[[Sequence[Group]], list[Group]]

    def sizes(self, rounds: int, number: int, solved: Sequence[Sequence[bool]]) -> list[tuple[int, int]]:
        """Return the size of each group of this process, and how many of its completions it would have in any case.

        Args:
            rounds: of sampling in the rollout, of which this is `number`.
            solved: of each process, which of its groups are solved.
        """
        plan, found = self.plan, dict[int, tuple[int, int]]()
        assert plan.first is not None
        now = [cut(plan.places(rank), rounds)[number] for rank in range(plan.ranks)]
        pairs = (zip(own, of, strict=True) for own, of in zip(now, solved, strict=True))
        in_order = iter(sorted(chain.from_iterable(pairs)))
        while together := dict(islice(in_order, plan.prompts_sharing)):
            shared_out = grown_sizes([*together.values()], plan.first, plan.group_size)
            found |= zip(together, zip(*shared_out, strict=True), strict=True)
        return [found[position] for position in now[self.rank]]

    def put_together(self, first: ScoredGroup, more: ScoredGroup | None, assured: int) -> ScoredGroup:
        """Return a group with the completions that it got later.

        Args:
            more: None: it got none.
            assured: completions that it would have had in any case.
        """
        if more is not None and more.group.prompt.ids != first.group.prompt.ids:
            one, other = self.alike([first.group, more.group])
            first, more = replace(first, group=one), replace(more, group=other)
        stops = self.succeeds(first) + (() if more is None else self.succeeds(more))
        assert self.plan.first is not None
        return grown(first, more, Growth(self.plan.first, assured, stops), self.plan.group_size)


class GrowingRound(DynamicSampling):
    """The groups of a round of sampling: first completions, then those of groups that grow, then maybe other groups in their place.

    Args:
        growth: decides.
        prompts: of this process.
        rounds: of sampling in the rollout, of which this is `number`.
        sampling: decides which groups are replaced. A group that takes the place of another one is sampled at once, in its size.
    """

    def __init__(
        self,
        growth: GroupGrowth,
        prompts: Sequence[Prompt],
        rounds: int,
        number: int,
        sampling: DynamicSampling,
    ) -> None:
        super().__init__(
            sampling.has_signal, sampling.reserve, sampling.limit, sampling.gather, sampling.kind
        )
        self.growth, self.prompts, self.place = growth, prompts, (rounds, number)
        self.first: Sequence[ScoredGroup] | None = None
        self.sizes: list[tuple[int, int]] = []
        self.growths: dict[str, Metric] = {}

    @property
    def is_awaited(self) -> bool:
        return self.first is None or super().is_awaited

    def add(self, scored: Sequence[ScoredGroup]) -> Asked | None:
        if self.first is None:
            solved = self.gather([all(self.growth.succeeds(group)) for group in scored])
            self.first, self.sizes = scored, self.growth.sizes(*self.place, solved)
            counts = [size - len(s.totals) for s, (size, _) in zip(scored, self.sizes, strict=True)]
            return Asked(self.prompts, counts, self.growth.plan.first or 0)
        if not self.growths:
            later, pairs = iter(scored), zip(self.first, self.sizes, strict=True)
            whole = [
                self.growth.put_together(s, next(later) if n > len(s.totals) else None, m)
                for s, (n, m) in pairs
            ]
            self.growths = growth_metrics(whole)
        else:
            whole = [self.growth.put_together(s, None, len(s.totals)) for s in scored]
        asked = super().add(whole)
        if asked is None:
            return None
        return replace(asked, counts=[len(self.groups[position].totals) for position in self.asked])

    def metrics(self) -> dict[str, Metric]:
        return super().metrics() | self.growths
