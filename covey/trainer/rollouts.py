"""Scored rollouts, one after the other: each is made when it is trained on, or `async_lag` rollouts before.

    rollout n is sampled with the weights as they are after rollout n - 1 - lag; before that, with the first ones

So when rollout n is due, rollout n + lag begins. An engine whose weights are its own samples beside the update; the native one,
whose weights are the policy's, samples at once, and only rewards run beside the update. That decides who waits, and nothing else:
what is computed is the same. The multipliers of rewards with a bound are those of the moment at which a rollout begins.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from covey.errors import ConfigError
from covey.metrics import Mean
from covey.rewards.execution.executors import start_thread
from covey.score.constraints import Multipliers
from covey.trainer.data import Ahead
from covey.trainer.distributed import gather, gather_of_its_own, gather_on_main, raise_together
from covey.trainer.replay import Replayed
from covey.trainer.scored_rollout import RolloutParts, ScoredRollout
from covey.types import Gather, ScoredGroup

if TYPE_CHECKING:
    from transformers import TrainerState

    from covey.sample.engine import Engine
    from covey.score.group_growth import GroupGrowth
    from covey.trainer.curriculum import Curriculum
    from covey.trainer.data import Numbered
    from covey.trainer.grpo_trainer import GRPOTrainer
    from covey.trainer.replay import Replay

TRAINING, EVALUATION = 0, 1
"""First part of the step that random numbers depend on: evaluation has numbers of its own."""
AT_ONCE = {"sample": "time/sample", "score": "time/score"}
AHEAD = {"sample": "async/sample_seconds", "score": "async/score_seconds"}
"""The metrics of seconds: ahead, `time/...` are those that the trainer waited."""


class Rollouts:
    """The rollouts of a run.

    Args:
        has_signal: whether a group teaches something, for dynamic sampling.
        lag: rollouts that are sampled before they are needed.
        curriculum: draws the prompts; None: they are those that the loader gives.
        growth: decides which groups grow; None: all are of one size.
        replay: draws groups that are trained on again; None: all are sampled.
    """

    def __init__(
        self,
        has_signal: Callable[[ScoredGroup], bool],
        lag: int = 0,
        curriculum: Curriculum | None = None,
        growth: GroupGrowth | None = None,
        replay: Replay | None = None,
    ) -> None:
        self.has_signal, self.lag, self.curriculum, self.growth = has_signal, lag, curriculum, growth
        self.replay = replay
        self.multipliers = Multipliers({})
        """Of rewards with a bound, as those rollouts make them that were trained on."""
        self.queue: list[ScoredRollout] = []
        """Begun and not yet trained on, in order."""
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()
        """Of the present run."""
        self.loaded = -1
        """Optimizer steps that the weights had seen that the engine was given last in the present run; -1: it was given none."""
        self._gather: Gather = gather
        """Of those threads that count refills, or what groups that grow share."""

    def begin(self, trainer: GRPOTrainer) -> None:
        """Begin a run, when what is left of another one has ended. Collective."""
        self.close()
        for thread in self._threads:
            thread.join()
        self.queue, self._threads, self._is_over, self.loaded = [], [], threading.Event(), -1
        self.multipliers = Multipliers(trainer.scorer.rewards.bounds)
        if self.curriculum is not None:
            self.curriculum.begin()
        if self.replay is not None:
            self.replay.buffer.rollouts.clear()
        if trainer.args.async_in_flight:
            check_in_flight(trainer.engine)
        counts = trainer.args.dynamic_sampling or self.growth is not None
        is_beside = self.lag and counts and trainer.engine.samples_beside_updates
        self._gather = gather_of_its_own() if is_beside else gather

    def close(self) -> None:
        """End the run: a thread ends with the call that it is in."""
        self._is_over.set()

    def drain(self) -> None:
        """Return when all that has begun is scored. Collective: raises in all processes what failed in one."""
        for rollout in self.queue:
            rollout.scored.wait()
        if self.queue and not self._is_over.is_set():
            raise_together(next((r.fault for r in self.queue if r.fault is not None), None))

    def ahead(self, trainer: GRPOTrainer) -> Ahead:
        """Return which rows are read when, from the present step on."""
        step, plan = trainer.state.global_step, trainer.plan
        first = math.ceil(step / plan.steps_per_rollout)
        total = math.ceil(plan.total_steps / plan.steps_per_rollout)
        return Ahead(self.lag, step // plan.steps_per_rollout, first, first + len(self.queue), total)

    def due(self, trainer: GRPOTrainer, rows: Sequence[Numbered]) -> ScoredRollout:
        """Return the rollout that is due: with a lag, made; without, to be made. The loader gave `rows` of those that begin now."""
        log, plan, ahead = trainer.run_log, trainer.plan, self.ahead(trainer)
        numbers = ahead.due(ahead.present)
        waited = self._begin_those(trainer, numbers, rows) if numbers else 0.0
        rollout = self.queue[0]
        if self.lag:
            start = time.perf_counter()
            with log.timed("score"):
                rollout.scored.wait()
            waited += time.perf_counter() - start
            updates = trainer.state.global_step - rollout.version
            log.note(
                {"async/lag": Mean(updates / plan.steps_per_rollout), "async/wait_sampler": Mean(waited)}
            )
            log.note({name: Mean(0.0, 1.0) for name in AHEAD.values()})
        return rollout

    def _begin_those(self, trainer: GRPOTrainer, numbers: Sequence[int], rows: Sequence[Numbered]) -> float:
        """Begin rollouts with the present weights; return the seconds that those before were waited for."""
        curriculum, draws, plan = self.curriculum, [], trainer.plan
        if curriculum is None:
            prompts = trainer.read_or_save(lambda: trainer.prompts.rollouts(rows, len(numbers)))
        else:
            draws = [curriculum.draw(number, plan.prompts_per_rollout) for number in numbers]
            prompts = trainer.read_or_save(lambda: curriculum.rollouts(trainer, draws))
        # After the rows are read: where one cannot be used, the buffer is saved as it was. There is one rollout, as there is no lag.
        replayed = Replayed() if self.replay is None else self.replay.draw(trainer, numbers[0])
        own = plan.places(trainer.args.process_index)
        prompts = [replayed.to_sample(rounds, own) for rounds in prompts]
        log, engine, step = trainer.run_log, trainer.engine, trainer.state.global_step
        is_beside, start = bool(self.lag) and engine.samples_beside_updates, time.perf_counter()
        with log.timed("sample"):
            for rollout in self.queue if not trainer.args.async_in_flight else ():
                rollout.sampled.wait()  # nobody samples while weights change
            waited = time.perf_counter() - start
            if self.queue:
                log.note({"async/wait_trainer": Mean(max(0.0, start - self.queue[-1].sampled_at))})
            if self.loaded < 0 and trainer.args.async_in_flight:
                trainer.remark(
                    "async_in_flight=True: weights change under running requests. The run is relaxed: it cannot be repeated, nor resumed "
                    "to the bit."
                )
            engine.load(trainer.policy, step if self.loaded >= 0 else None)
            self.loaded = step
        for number, of_rounds in zip(numbers, prompts, strict=True):
            parts = self._parts(trainer, number, not is_beside and number == numbers[-1])
            rollout = ScoredRollout(number, step, parts, of_rounds, self.queue[-1] if self.queue else None)
            rollout.notes += [draw.metrics for draw in draws if draw.number == number]
            rollout.notes.append(replayed.metrics)
            rollout.replayed = replayed
            rollout.notes.append(self.multipliers.metrics())
            self.queue.append(rollout)
            if self.lag and not is_beside:
                with log.timed("sample"):
                    rollout.make() if parts.samples_again else rollout.sample()
            if self.lag:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                self._threads.append(start_thread(rollout.make, f"covey-rollout-{number}")[0])
        return waited

    def finished(self, trainer: GRPOTrainer, rollout: ScoredRollout) -> list[ScoredGroup]:
        """Return the groups of a rollout with their advantages: this process's own, or those of all where groups straddle processes."""
        log, scored = trainer.run_log, list[ScoredGroup]()
        raise_together(rollout.fault)
        del self.queue[0]
        if self.curriculum is not None:
            self.curriculum.learn(rollout.number, gather(rollout.evidence))
        if self.multipliers.bounds:
            rollout.notes.append(self.multipliers.learn(gather(rollout.observed)))
        for metrics in rollout.notes:
            log.note(metrics)
        log.note_engine(rollout.engine_numbers)
        for groups in rollout.rounds:
            with log.timed("score"):
                with_advantages, metrics = trainer.scorer.add_advantages(groups)
            log.note(metrics)
            scored += with_advantages
        replayed = rollout.replayed or Replayed()
        if self.replay is not None:
            self.replay.keep(rollout.number, replayed, scored)
        return self._recorded(trainer, replayed, scored)

    def _recorded(
        self, trainer: GRPOTrainer, replayed: Replayed, scored: Sequence[ScoredGroup]
    ) -> list[ScoredGroup]:
        """Record the groups that were sampled, and return those that are trained on, replayed ones in their places. Collective."""
        log, plan = trainer.run_log, trainer.plan
        keeps_whole = plan.keeps_groups_whole  # then only the record needs those of other processes
        of_ranks = gather_on_main(scored) if keeps_whole else gather(scored)
        places = range(plan.prompts_per_rollout)
        fresh = [place for place in places if place not in replayed.groups]
        everything = trainer.prompts.in_order(of_ranks, fresh) if of_ranks else []
        if trainer.is_world_process_zero():
            log.record_groups(trainer.state.global_step + 1, everything)
        if keeps_whole:
            return replayed.among(scored, plan.places(trainer.args.process_index))
        return replayed.among(everything, places)

    def _parts(self, trainer: GRPOTrainer, number: int, sleeps: bool) -> RolloutParts:
        """Return what rollout `number` is made with, as it is now."""
        args, agents = trainer.args, trainer.agents
        sampling = replace(trainer.sampling, step=(TRAINING, number))
        scorer, weights = trainer.scorer, self.multipliers.weights()
        agents.keep_journal(args, sampling.step if trainer.state.global_step else None, trainer.remark)
        return RolloutParts(
            engine=trainer.engine,
            sleeps=sleeps,
            sampler=agents.sampler(trainer),
            sampling=sampling,
            group_size=trainer.plan.first or trainer.plan.group_size,
            growth=self.growth,
            complete=trainer.with_logprobs,
            penalties=trainer.kl_penalties if args.kl_in_reward else None,
            scorer=replace(scorer, weights=weights) if weights else scorer,
            has_signal=self.has_signal,
            refills=args.dynamic_sampling_rounds if args.dynamic_sampling else 0,
            gather=self._gather,
            state=self._state_at(trainer, number) if self.lag else trainer.state,
            task_column=trainer.run_log.task_column,
            refills_by="" if trainer.prompts.quota is None else trainer.prompts.quota.column,
            phases=AHEAD if self.lag else AT_ONCE,
            swaps=args.async_in_flight,
            waits_to_begin=bool(self.lag) and agents.environments is not None,
            version=lambda: self.loaded,
            is_cancelled=self._is_over.is_set,
        )

    def _state_at(self, trainer: GRPOTrainer, number: int) -> TrainerState:
        """Return the trainer's state as rewards of a later rollout see it: the present one, at the steps of that rollout."""
        state, plan = copy.copy(trainer.state), trainer.plan
        state.log_history = list(state.log_history)
        state.global_step = number * plan.steps_per_rollout
        state.epoch = state.global_step / (plan.steps_per_epoch or plan.total_steps)
        return state


def check_in_flight(engine: Engine) -> None:
    """Raise where weights cannot change under requests that an engine is running.

    Raises:
        ConfigError: they cannot.
    """
    if not (engine.samples_beside_updates and engine.swaps_in_flight):
        sleeps = (
            " as its servers sleep during updates (vllm_enable_sleep_mode=True)"
            if engine.swaps_in_flight
            else ""
        )
        raise ConfigError(
            f"async_in_flight=True does not go with {type(engine).__name__}: it takes weights only when nothing is being sampled{sleeps}. "
            "Leave it out; async_lag works without, and the run can be repeated."
        )
