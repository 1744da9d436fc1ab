"""Groups that are trained on again: what is kept of a rollout, what is drawn, and what it weighs.

    s = informative / seen      over the rollouts in the buffer: groups whose completions disagree, by all groups that were sampled
    A ← s A                     of a group that is drawn; all that are kept are drawn alike

A group whose completions agree has advantages of 0 and is not kept. The others alone have a gradient 1 / s times that of all groups, on
average; s takes it back: (Σ over kept ones of g) / informative · informative / seen = (Σ over all of g) / seen.

    ESS = (Σ w)² / (n Σ w²)     w = exp(Σ_t (o - b)), one for each of the group's n completions; Kish (1965), section 11.7

o and b are log-probabilities under the policy that the update begins with and under the one that sampled. Weights that are all alike have an
ESS of 1, whatever they are; where one completion holds all, it is 1 / n.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from covey.types import ScoredGroup

GroupKey = tuple[int, int]
"""The number of a rollout, and the place of a group in it."""


@dataclass
class KeptRollout:
    """The groups of one rollout that may be trained on again."""

    number: int
    seen: int
    """Groups that were sampled for it, on all processes."""
    informative: int
    """Those of them whose completions disagree."""
    places: list[int]
    """Of the groups that are kept, on all processes, in order."""
    own: dict[int, ScoredGroup]
    """Those that this process holds, by place."""


class ReplayBuffer:
    """The groups of the last rollouts whose completions disagree. Every process knows of all, and holds its own.

    Args:
        age: rollouts that a group stays.
    """

    def __init__(self, age: int) -> None:
        self.age = age
        self.rollouts: list[KeptRollout] = []

    @property
    def share(self) -> float:
        """Return s, what advantages of a drawn group are multiplied with; 0 where nothing was sampled."""
        seen = sum(rollout.seen for rollout in self.rollouts)
        return sum(rollout.informative for rollout in self.rollouts) / seen if seen else 0.0

    def keep(self, number: int, seen: int, places: Sequence[int], own: Mapping[int, ScoredGroup]) -> None:
        """Keep the informative groups of a rollout.

        Args:
            seen: groups that were sampled for it, on all processes.
            places: of those that are informative, on all processes.
            own: those that this process holds, by place.
        """
        self.rollouts.append(KeptRollout(number, seen, len(places), sorted(places), dict(own)))

    def draw(self, number: int, count: int, generator: np.random.Generator) -> list[GroupKey]:
        """Draw `count` different groups for rollout `number`, each alike; fewer where there are fewer. Groups that are too old leave."""
        self.rollouts = [r for r in self.rollouts if number - r.number <= self.age]
        keys = [(r.number, place) for r in self.rollouts for place in r.places]
        return [keys[i] for i in generator.permutation(len(keys))[:count]]

    def held(self, keys: Collection[GroupKey]) -> dict[GroupKey, ScoredGroup]:
        """Return those of these groups that this process holds."""
        found = {(r.number, place): group for r in self.rollouts for place, group in r.own.items()}
        return {key: found[key] for key in keys if key in found}

    def drop(self, keys: Collection[GroupKey]) -> None:
        """Let groups go that the policy has moved away from. They still count as informative: s is of what was sampled."""
        for rollout in self.rollouts:
            rollout.places = [p for p in rollout.places if (rollout.number, p) not in keys]
            rollout.own = {p: g for p, g in rollout.own.items() if p in rollout.places}


def is_informative(scored: ScoredGroup) -> bool:
    """Return whether any completion of a group has an advantage, or any of its turns."""
    return any(scored.advantages) or any(map(any, scored.turn_advantages or ()))


def weighed(scored: ScoredGroup, share: float, rollout: int) -> ScoredGroup:
    """Return a group of an earlier rollout with its advantages times a share; its prompt is told from one that is sampled anew."""
    key = (*scored.group.prompt.seed_key, rollout)
    group = replace(scored.group, prompt=replace(scored.group.prompt, seed_key=key))
    turns = scored.turn_advantages
    by_turn = None if turns is None else tuple(tuple(share * a for a in own) for own in turns)
    return replace(
        scored,
        group=group,
        advantages=tuple(share * a for a in scored.advantages),
        turn_advantages=by_turn,
    )


def effective_share(gaps: Sequence[float]) -> float:
    """Return the effective sample size of a group as a share of its completions, from the logarithms of their weights, in nats."""
    logs = np.asarray(gaps, dtype=np.float64)
    weights = np.exp(logs - logs.max())
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def spread_places(count: int, places: int, shift: int) -> list[int]:
    """Return `count` of so many places, in order, as far apart as can be: optimizer steps and processes have alike many.

    Args:
        shift: moves all of them on, around the end; where it is drawn, each place is taken equally often, whatever prompt it has.
    """
    return sorted((n * places // count + shift) % places for n in range(count))
