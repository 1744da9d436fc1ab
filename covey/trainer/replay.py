"""Replay: groups of earlier rollouts take places in a rollout, which samples as many fewer.

    draw      before a rollout is sampled: groups of the buffer, alike; a pass of the policy, as it is now, measures how far it has
              moved from each (`covey.score.replay_buffer.effective_share`); the others get places
    keep      when it is trained on: its own groups whose completions disagree

What is drawn depends on seed and rollout alone, and on what the rollouts before have kept; every process draws the same. A group lies on
the process that trained on it first, and goes to the one whose place it takes. A replayed group comes with its own advantages, times the
share of groups that taught something, and with the log-probabilities of its sampler: the update corrects for these as for any others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from covey.metrics import Mean, Metrics
from covey.plan import cut
from covey.sample.unequal_draw import generator_of
from covey.score.replay_buffer import (
    ReplayBuffer,
    effective_share,
    is_informative,
    spread_places,
    weighed,
)
from covey.trainer.distributed import gather
from covey.types import ScoredGroup

if TYPE_CHECKING:
    from covey.config import GRPOConfig
    from covey.plan import Plan
    from covey.trainer.data import Round
    from covey.trainer.grpo_trainer import GRPOTrainer

K = TypeVar("K")
T = TypeVar("T")
STREAM = 0x4E
"""Part of the key of the random numbers that draw groups."""


@dataclass(frozen=True)
class Replayed:
    """The groups that are trained on again in a rollout, on all processes, by the place that they take."""

    groups: Mapping[int, ScoredGroup] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)

    def to_sample(self, rounds: Sequence[Round], places: Sequence[int]) -> list[Round]:
        """Return the rounds of a process without the prompts whose places, among its own, are taken."""
        if not self.groups:
            return list(rounds)
        of_rounds = zip(rounds, cut(places, len(rounds)), strict=True)
        return [
            ([p for p, place in zip(own, part, strict=True) if place not in self.groups], fresh)
            for (own, fresh), part in of_rounds
        ]

    def among(self, fresh: Iterable[ScoredGroup], places: Iterable[int]) -> list[ScoredGroup]:
        """Return the groups of these places in order: replayed ones, and between them the fresh ones."""
        sampled = iter(fresh)
        return [self.groups[p] if p in self.groups else next(sampled) for p in places]


class Replay:
    """Draws groups that are trained on again, and keeps those that may be.

    Args:
        args: the settings.
        plan: of the run.
    """

    def __init__(self, args: GRPOConfig, plan: Plan) -> None:
        self.args, self.plan = args, plan
        self.buffer = ReplayBuffer(args.replay_age)

    def draw(self, trainer: GRPOTrainer, number: int) -> Replayed:
        """Draw the groups that take places in a rollout; those that the policy has moved away from leave the buffer. Collective."""
        args, buffer, total = self.args, self.buffer, self.plan.prompts_per_rollout
        generator = generator_of(args.seed, STREAM, number)
        keys, shift = buffer.draw(number, args.replay_groups, generator), int(generator.integers(total))
        places = dict(zip(spread_places(len(keys), total, shift), keys, strict=True))
        drawn = _joined(gather(buffer.held(keys))) if keys else {}
        mine = {p: drawn[key] for p, key in places.items() if self.plan.owner(p) == args.process_index}
        ess = _joined(gather(self._measured(trainer, mine))) if keys else {}
        left = {place: key for place, key in places.items() if ess[place] >= args.replay_min_ess}
        buffer.drop({key for place, key in places.items() if place not in left})
        share, lost = buffer.share, len(keys) - len(left)
        metrics = {
            "replay/share": Mean(len(left), total),
            "replay/ess": Mean(sum(ess.values()), len(keys)),
            "replay/dropped": Mean(lost, len(keys)),
            "replay/age": Mean(sum(number - before for before, _ in left.values()), len(left)),
            "replay/weight": Mean(share * len(left), len(left)),
        }
        return Replayed({p: weighed(drawn[key], share, key[0]) for p, key in left.items()}, metrics)

    def _measured(self, trainer: GRPOTrainer, groups: Mapping[int, ScoredGroup]) -> dict[int, float]:
        """Return the effective sample size of each of these groups, as a share, under the policy as it is now. Collective."""
        size, device = self.args.per_device_train_batch_size, self.args.device
        with trainer.run_log.timed("update"):
            own = [scored.group for scored in groups.values()]
            gaps = trainer.updater.sequence_gaps(trainer.model, own, size, device)
        return {place: effective_share(of_group) for place, of_group in zip(groups, gaps, strict=True)}

    def keep(self, number: int, replayed: Replayed, fresh: Sequence[ScoredGroup]) -> None:
        """Keep the groups of a rollout that were sampled for it and whose completions disagree. Collective.

        Args:
            fresh: those of this process, in order.
        """
        total, rank = self.plan.prompts_per_rollout, self.args.process_index
        places = [place for place in self.plan.places(rank) if place not in replayed.groups]
        own = {p: g for p, g in zip(places, fresh, strict=True) if is_informative(g)}
        known = [place for of_rank in gather(list(own)) for place in of_rank]
        self.buffer.keep(number, total - len(replayed.groups), known, own)


def make_replay(args: GRPOConfig, plan: Plan) -> Replay | None:
    """Build what draws groups that are trained on again; None where all are sampled."""
    return Replay(args, plan) if args.replay_groups else None


def _joined(parts: Iterable[Mapping[K, T]]) -> dict[K, T]:
    """Return what all processes know, by key."""
    return {key: value for part in parts for key, value in part.items()}
