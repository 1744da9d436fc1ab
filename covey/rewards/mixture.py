"""A mixture: several rewards, their routes, gates, weights, and what becomes of failures. Itself a reward."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, overload

from covey.errors import RewardError, warn
from covey.metrics import Mean, merge
from covey.rewards.batch import RewardBatch, RewardTable
from covey.rewards.bounds import Bound
from covey.rewards.breaker import Breaker, BreakerState
from covey.rewards.cache import CacheState, RewardCache
from covey.rewards.contract import Reward, RewardFunction, options_of
from covey.rewards.options import OnError, reward_name, unique_names
from covey.rewards.reserved import is_reserved
from covey.rewards.reward_metrics import mixture_metrics
from covey.rewards.routing import check_gates
from covey.rewards.schedules import start_weight
from covey.rewards.score_batch import score_batch
from covey.rewards.state import kept_memories, restore, warn_of_forgetting
from covey.types import PromptContent


class MixtureState(TypedDict):
    """Memory of a mixture between batches, as a checkpoint keeps it."""

    rewards: dict[str, object]
    cache: CacheState | None
    breaker: BreakerState


class Mixture(Sequence[Reward]):
    """Rewards for some samples or all, with weights, gates, deadlines and failures kept apart from zeros.

        mix = Mixture(
            ThinkFormat(),
            reward(Countdown(), weight=2.0, tasks="countdown"),
            reward(CallTests(), tasks="code", requires="think_format"),
        )
        GRPOTrainer(..., reward_funcs=mix)

    It is a plain reward function, here and in other trainers: called with `prompts`, `completions` and columns, it returns
    one total per completion. It is also the sequence of its rewards.

    Args:
        rewards: functions, coroutine functions, callables, or `reward(...)`.
        task_column: the column that `tasks` and weights by task look at.
        name: the total's name in metrics, where the mixture is used as a plain function.
        on_error: for rewards that have none of their own.
        max_failure_rate: stop when a reward failed on a larger share of the last `window` samples.
        min_coverage: stop when a smaller share of the last `window` samples was scored by any reward.
        window: samples over which the two are looked at.
        unscored: whether a row that no reward applies to is an `error` to `check_rewards`, or fine (`ignore`).
        cache: keep scores of pure rewards between batches: True for memory, a path for a file that outlives the run.

    Raises:
        RewardError: no reward, something that cannot be called, an unknown gate, or options that cannot be kept.
    """

    def __init__(
        self,
        *rewards: RewardFunction,
        task_column: str = "task",
        name: str = "mixture",
        on_error: OnError | None = None,
        max_failure_rate: float = 0.5,
        min_coverage: float = 0.0,
        window: int = 256,
        unscored: str = "error",
        cache: bool | str | Path = False,
    ) -> None:
        if unscored not in ("error", "ignore"):
            raise RewardError(f"unscored={unscored!r}: it is 'error' or 'ignore'.")
        if not rewards:
            raise RewardError(
                "A mixture has at least one reward: a function, or a reward model with its tokenizer."
            )
        given = [reward_name(r) for r in rewards]
        names = unique_names(given)
        self.rewards: list[Reward] = []
        for function, unique in zip(rewards, names, strict=True):
            check_bounds_are_kept(getattr(function, "function", function))
            # One that needs no change stays the object it is.
            part = function if isinstance(function, Reward) else Reward(function, unique)
            if part.name != unique:
                part = replace(part, name=unique)
            if on_error is not None and part.options.on_error == "raise":
                part = replace(part, options=options_of(part, on_error=on_error))
            self.rewards.append(part)
        self.task_column = task_column
        self.__name__ = name
        self.tasks: set[str] = set()
        """Tasks that get means of their own in the metrics; those that the routes name, and those added here."""
        for options in (r.options for r in self.rewards):
            self.tasks |= set(options.tasks or ())
            self.tasks |= set(options.weight) - {"*"} if isinstance(options.weight, Mapping) else set()
        self.unscored = unscored
        self.cache = RewardCache(path=None if cache is True else cache) if cache else None
        self._breaker = Breaker(max_failure_rate, min_coverage, window)
        check_gates(self.rewards, given)
        warn_of_forgetting(self.rewards)

    @overload
    def __getitem__(self, index: int) -> Reward: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Reward]: ...
    def __getitem__(self, index: int | slice) -> Reward | Sequence[Reward]:
        return self.rewards[index]

    def __len__(self) -> int:
        return len(self.rewards)

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        group_ids: Sequence[int] | None = None,
        trainer_state: object = None,
        log_extra: Callable[[str, list[Any]], object] | None = None,
        log_metric: Callable[[str, float], object] | None = None,
        **columns: object,
    ) -> list[float | None]:
        """Return one total per completion; None where nothing scored it, or a required reward failed on it.

        Args:
            log_extra: takes the columns that the rewards noted.
            log_metric: takes the rewards' means and shares as `<reward>/…`, and what they noted.
            columns: one value per completion each; what is no such column is left out.

        Raises:
            RewardError: a reward has a bound, which takes a trainer that learns its multiplier.
        """
        check_bounds_are_kept(self)
        size = len(completions)
        batch = RewardBatch(
            prompts=list(prompts or []),
            completions=list(completions),
            completion_ids=[list(ids) for ids in completion_ids or []],
            columns={
                name: list(values)
                for name, values in columns.items()
                if isinstance(values, Sequence) and not isinstance(values, str) and len(values) == size
            },
            group_ids=list(group_ids or []),
            trainer_state=trainer_state,
        )
        table = self.score(batch)
        if log_extra is not None:
            for column, noted in table.extras.items():
                log_extra(column, noted)
        if log_metric is not None:
            means = {
                f"rewards/{name}/mean": Mean.of(s.value for s in scores if s.value is not None)
                for name, scores in table.scores.items()
            }
            # `rewards/…` are names of whoever calls, who may have a reward of the same name beside this mixture.
            for name, metric in {**means, **table.metrics}.items():
                if name.startswith("time/rewards/"):
                    name = f"{name.removeprefix('time/')}/seconds"
                name = name.removeprefix("rewards/")
                if metric.value is not None:
                    log_metric(f"{self.__name__}/{name}" if is_reserved(name) else name, metric.value)
        return [table.total(row) for row in range(size)]

    def score(self, batch: RewardBatch, weights: Mapping[str, float] | None = None) -> RewardTable:
        """Score a batch of whole groups with every reward.

        Args:
            weights: weights that replace those of the rewards, by name.

        Raises:
            RewardError: a reward raised or broke the contract and has no other `on_error`, or the share of failures or of
                unscored samples is too large.
        """
        table = score_batch(self.rewards, batch, self.task_column, self.cache, weights)
        self._breaker.watch(self.rewards, table, len(batch))
        metrics = mixture_metrics(table, batch, self.task_column, sorted(self.tasks))
        table.metrics = merge(table.metrics, metrics)
        return table

    def extended(self, more: Sequence[Reward]) -> Mixture:
        """Return a mixture of these rewards and more of them behind, with the same options and memory."""
        if not more:
            return self
        whole = copy.copy(self)
        whole.rewards = Mixture(*self.rewards, *more).rewards
        return whole

    @property
    def weights(self) -> dict[str, float]:
        """Each reward's weight at the start of training; of weights by task, the largest."""
        return {r.name: start_weight(r.options.weight) for r in self.rewards}

    @property
    def bounds(self) -> dict[str, Bound]:
        """The bounds on the means of rewards, by name of those that have one."""
        return {r.name: r.options.bound for r in self.rewards if r.options.bound is not None}

    def missing_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that some reward needs and the dataset lacks."""
        return sorted({name for reward in self.rewards for name in reward.missing_columns(columns)})

    def state_dict(self) -> MixtureState:
        """Return the mixture's memory: states of rewards with a `state_dict` of their own, cached scores, and how often
        rewards failed lately. Plain values and tensors; a checkpoint keeps it."""
        return {
            "rewards": {name: memory.state_dict() for name, memory in kept_memories(self.rewards).items()},
            "cache": None if self.cache is None else self.cache.state(self.rewards),
            "breaker": self._breaker.state(),
        }

    def load_state_dict(self, state: MixtureState) -> None:
        """Go on from a `state_dict`; a reward that has no state there starts without memory, with a warning."""
        for remark in restore(self.rewards, state["rewards"]):
            warn(f"In the checkpoint {remark}.")
        if self.cache is not None and state["cache"] is not None:
            self.cache.restore(state["cache"], self.rewards)
        self._breaker.restore(state["breaker"])


def check_bounds_are_kept(function: object) -> None:
    """Raise a RewardError for a mixture with bounds that is to be a plain reward function: nobody learns their multipliers there."""
    bounded = function.bounds if isinstance(function, Mixture) else {}
    for name in bounded:
        raise RewardError(
            f"Reward {name!r} has at_least or at_most, and its mixture is used as a plain function, where no multiplier is learned. Give the "
            "mixture to Covey's GRPOTrainer itself, or the reward a weight in place of the bound."
        )


def as_rewards(functions: RewardFunction | list[RewardFunction] | tuple[RewardFunction, ...]) -> Mixture:
    """Return one reward or a list of them as a mixture with unique names; a mixture stays the one it is.

    Raises:
        RewardError: nothing was given, or something that cannot be called.
    """
    listed = list(functions) if isinstance(functions, list | tuple) else [functions]
    if len(listed) == 1 and isinstance(listed[0], Mixture):
        return listed[0]
    if not listed:
        raise RewardError(
            "reward_funcs is empty. Give at least one reward: a function, a model's name, or a module."
        )
    return Mixture(*listed)
