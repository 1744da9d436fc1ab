"""A rollout on its way from prompts to scored groups, on the main thread or beside the update.

Everything that it is made with is held from the moment when it begins, so that what happens meanwhile does not change it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from covey.errors import EngineError
from covey.metrics import Metrics, merge, timed
from covey.score.constraints import observed
from covey.score.dynamic_sampling import Asked, DynamicSampling
from covey.score.group_growth import GrowingRound
from covey.score.pass_rates import Evidence
from covey.score.score_metrics import completion_metrics, reward_metrics, task_metrics, token_metrics
from covey.trainer.distributed import ProcessFailure, has_to_be_told
from covey.trainer.sampled import asked_singly, regrouped

if TYPE_CHECKING:
    from covey.sample.engine import Engine
    from covey.sample.sampling import Sampling
    from covey.score.group_growth import GroupGrowth
    from covey.score.scorer import Scorer
    from covey.trainer.data import Round
    from covey.trainer.replay import Replayed
    from covey.trainer.sampled import Sampled, SampleFunction
    from covey.types import Gather, Group, Prompt, ScoredGroup


@dataclass(frozen=True, kw_only=True)
class RolloutParts:
    """The parts of a run that a rollout is sampled and scored with."""

    engine: Engine
    sleeps: bool
    """Whether the engine is put to sleep when this rollout is sampled."""
    sampler: SampleFunction
    sampling: Sampling
    group_size: int
    """Completions of each prompt; where groups grow, the first ones."""
    growth: GroupGrowth | None
    """Decides which groups grow; None: all are of one size."""
    complete: Callable[[Sampled], Sampled]
    """Fills in log-probabilities that a rollout function did not give."""
    penalties: Callable[[Sequence[Group]], list[float]] | None
    """Returns what is taken off the reward of each completion; None: nothing is."""
    scorer: Scorer
    has_signal: Callable[[ScoredGroup], bool]
    refills: int
    """Rounds of dynamic sampling at most; 0: there is none."""
    gather: Gather
    """Of the processes' threads that make this rollout; called once per attempt where there are refills, and before groups grow."""
    state: object
    """The trainer's state that rewards are shown."""
    task_column: str
    refills_by: str
    """Column whose value a prompt that takes the place of another one shares with it; empty: none."""
    phases: Mapping[str, str]
    """The metrics that the seconds of "sample" and "score" go to."""
    swaps: bool
    """Whether weights may change while this rollout is sampled."""
    waits_to_begin: bool
    """Whether nothing is sampled before the rollout before is scored: environments go from one to the next."""
    version: Callable[[], int]
    """Returns the optimizer steps that the engine's weights have seen."""
    is_cancelled: Callable[[], bool]

    @property
    def samples_again(self) -> bool:
        """Whether scores decide what else is sampled."""
        return bool(self.refills) or self.growth is not None


@dataclass(eq=False)
class ScoredRollout:
    """One round of sampling: its groups with their scores, once `scored` is set. Advantages come when it is trained on."""

    number: int
    version: int
    """Optimizer steps that the weights had seen with which its sampling began."""
    parts: RolloutParts | None = None
    """None: it is made, and came from a checkpoint."""
    prompts: Sequence[Round] = ()
    before: ScoredRollout | None = None
    """The rollout that engine and rewards are asked for first; None: all others are made."""
    rounds: list[list[ScoredGroup]] = field(default_factory=list)
    notes: list[Metrics] = field(default_factory=list)
    """Metrics, in the order in which they came."""
    evidence: list[Evidence] = field(default_factory=list)
    """What its groups said of their prompts, those that were replaced too."""
    observed: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """What its groups said of the means of rewards with a bound, those that were replaced too."""
    engine_numbers: Mapping[str, float] = field(default_factory=dict)
    """Those of the engine when this rollout was sampled."""
    replayed: Replayed | None = None
    """The groups of earlier rollouts that take places in it; None: none do."""
    fault: BaseException | None = None
    """Why it could not be made."""
    sampled: threading.Event = field(default_factory=threading.Event)
    """Set when nothing is left to sample, or a fault is known."""
    sampled_at: float = math.inf
    """When that was, in seconds of the clock that measures durations; infinite where another process did it."""
    scored: threading.Event = field(default_factory=threading.Event)
    """Set when nothing is left to score, or a fault is known."""
    first: list[Sampled] = field(default_factory=list)
    """Sampled and not scored yet: the first attempt of each round."""

    def sample(self) -> None:
        """Sample the first attempt of each round of sampling; a fault is kept."""
        assert self.parts is not None
        try:
            if self.parts.waits_to_begin and self.before is not None:
                self.before.scored.wait()
            self.version = self.parts.version()
            self.first = [self._sampled(self.parts, Asked(own)) for own, _ in self.prompts]
            if not self.parts.samples_again:
                self._end_sampling(self.parts)
        except Exception as error:
            self.fault = error
            self.sampled.set()

    def make(self) -> None:
        """Sample what is not sampled yet, and score; a fault is kept. Nothing is left to do where that is done."""
        if self.scored.is_set() or self.parts is None:
            return
        parts = self.parts
        try:
            if self.before is not None:
                self.before.sampled.wait()
            if not self.first and not self.sampled.is_set():
                self.sample()
            if self.before is not None:  # rewards, and what they remember, see one rollout after the other
                self.before.scored.wait()
            for number, (own, fresh) in enumerate(self.prompts):
                kept = self._round(parts, number, own, fresh)
                first = iter(self.first[number : number + 1])
                asked: Asked | None = Asked(own)
                while asked is not None:
                    with self._faults_told(parts, kept.is_awaited):
                        sampled = next(first, None) or self._sampled(parts, asked)
                        groups = sampled.groups
                        penalties = None if parts.penalties is None else parts.penalties(groups)
                        with timed(self.notes.append, parts.phases["score"]):
                            scored, metrics = parts.scorer.run_rewards(
                                groups, parts.state, penalties, sampled.columns
                            )
                        sampled.release()
                    self.notes.append(merge(metrics, sampled.metrics))
                    asked = kept.add(scored)
                    if kept.attempt is not None:
                        self.evidence += Evidence.of(kept.attempt)
                        self._note(parts, kept.attempt)
                self.notes.append(kept.metrics())
                self.rounds.append(kept.groups)
            if parts.samples_again:
                self._end_sampling(parts)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # in a thread nobody else would hear of it
            self.fault = self.fault or error
        finally:
            self.sampled.set()
            self.scored.set()
            self.first, self.before = [], None

    def _round(
        self, parts: RolloutParts, number: int, own: Sequence[Prompt], fresh: Sequence[Prompt]
    ) -> DynamicSampling:
        """Begin the groups of a round."""
        kept = DynamicSampling(
            parts.has_signal,
            fresh,
            parts.refills,
            parts.gather,
            lambda prompt: str(prompt.columns.get(parts.refills_by)),
        )
        if parts.growth is None:
            return kept
        return GrowingRound(parts.growth, own, len(self.prompts), number, kept)

    def _sampled(self, parts: RolloutParts, asked: Asked) -> Sampled:
        """Sample the completions that are asked for."""
        version = parts.version()
        prompts, size = asked.prompts, parts.group_size
        if asked.counts is not None:
            prompts, size = asked_singly(asked), 1
        with timed(self.notes.append, parts.phases["sample"]):
            sampled = parts.sampler(parts.engine, prompts, size, parts.sampling)
        if asked.counts is not None:
            sampled = replace(sampled, groups=regrouped(sampled.groups, asked.counts))
        if parts.swaps:  # what the engine does not say is no older than the call
            sampled = replace(sampled, groups=[_with_versions(group, version) for group in sampled.groups])
        return sampled if sampled.has_logprobs else parts.complete(sampled)

    def _note(self, parts: RolloutParts, attempt: Sequence[ScoredGroup]) -> None:
        """Note the metrics of scored groups, and what they say of bounds."""
        groups = [scored.group for scored in attempt]
        given = reward_metrics(attempt, [reward.name for reward in parts.scorer.rewards])
        self.notes.append(merge(given, completion_metrics(groups)))
        self.notes.append(merge(task_metrics(attempt, parts.task_column), token_metrics(groups)))
        for name, pairs in observed(attempt, parts.scorer.rewards.bounds).items():
            self.observed.setdefault(name, []).extend(pairs)

    def _end_sampling(self, parts: RolloutParts) -> None:
        """Let the weights be changed."""
        self.engine_numbers = parts.engine.metrics()
        if parts.sleeps:
            with timed(self.notes.append, parts.phases["sample"]):
                parts.engine.sleep()
        self.sampled_at = time.perf_counter()
        self.sampled.set()

    @contextmanager
    def _faults_told(self, parts: RolloutParts, are_awaited: bool) -> Iterator[None]:
        """Tell what fails to the processes that wait for a count, if any do; begin nothing where something has failed, or the run is over."""
        try:
            if self.fault is not None:
                raise self.fault
            if self.before is not None and self.before.fault is not None:
                raise EngineError(f"Rollout {self.before.number}, which comes before, could not be made.")
            if parts.is_cancelled():
                raise EngineError("The run ended before this rollout was scored.")
            yield
        except Exception as error:
            if are_awaited and has_to_be_told(error):
                parts.gather(ProcessFailure.of(error))
            raise


def _with_versions(group: Group, version: int) -> Group:
    """Return a group whose completions say how old their weights were: `version`, where they do not."""
    told = [c if c.version is not None else replace(c, version=version) for c in group.completions]
    return replace(group, completions=tuple(told))
