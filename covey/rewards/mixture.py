"""A mixture: several rewards, who applies where, what they weigh, and what becomes of failures. Itself a reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from covey.errors import RewardError, warn
from covey.metrics import merge
from covey.rewards.batch import RESERVED, RewardBatch, RewardTable
from covey.rewards.breaker import Breaker, FirstFailures
from covey.rewards.cache import Cache
from covey.rewards.contract import Reward, options_of
from covey.rewards.names import reward_name, unique_names
from covey.rewards.options import RewardOptions
from covey.rewards.reward_metrics import mixture_metrics
from covey.rewards.routing import in_waves
from covey.rewards.schedules import progress_of, weight_at
from covey.rewards.score_batch import Evaluation, score_batch
from covey.rewards.state import restore, states_of, warn_of_forgetting
from covey.types import PromptContent

if TYPE_CHECKING:
    from covey.rewards.check.report import CheckReport


class Mixture(Sequence[Reward]):
    """Rewards for some samples or all, with weights, gates, deadlines and failures kept apart from zeros.

        mix = Mixture(
            ThinkFormat(),
            reward(Countdown(), weight=2.0, tasks="countdown"),
            reward(CallTests(), tasks="code", requires="think_format"),
        )
        GRPOTrainer(..., reward_funcs=mix)

    It is a plain reward function, here and in other trainers: called with `prompts`, `completions` and columns, it gives
    one total per completion. It is also the sequence of its rewards.

    Args:
        rewards: functions, coroutine functions, callables, or what `reward(...)` gives.
        task_column: the column that `tasks` and weights by task look at.
        name: what metrics call the total, where the mixture is used as a plain function.
        on_error: for rewards that do not say it themselves.
        max_failure_rate: stop when a reward failed on a larger share of the last `window` samples.
        min_coverage: stop when a smaller share of the last `window` samples was scored by any reward.
        window: samples over which the two are looked at.
        unscored: what a row that no reward applies to is to `check`: an `error`, or fine (`ignore`).
        cache: keep scores of pure rewards between batches: True for memory, a path for a file that outlives the run.

    Raises:
        RewardError: no reward, something that cannot be called, an unknown gate, or options that cannot be kept.
    """

    def __init__(
        self,
        *rewards: Any,
        task_column: str = "task",
        name: str = "mixture",
        on_error: Any = None,
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
        names = unique_names([reward_name(r) for r in rewards])
        self.rewards = [_part(r, name, on_error) for r, name in zip(rewards, names, strict=True)]
        self.task_column = task_column
        self.__name__ = name
        self.tasks = {task for r in self.rewards for task in _tasks_of(r.options)}
        """Tasks that get means of their own in the metrics; those that the routes name, and those added here."""
        self.unscored = unscored
        self.cache = Cache(path=None if cache is True else cache) if cache else None
        self._breaker = Breaker(max_failure_rate, min_coverage, window)
        self._first_failures = FirstFailures()
        in_waves(self.rewards)
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
        **columns: Any,
    ) -> list[float | None]:
        """One total per completion; None where nothing scored it, or a required reward failed on it."""
        given = {name: columns.pop(name, None) for name in ("trainer_state", "log_extra", "log_metric")}
        batch = RewardBatch(
            prompts=list(prompts or []),
            completions=list(completions),
            completion_ids=[list(ids) for ids in completion_ids or []],
            columns={
                n: list(v)
                for n, v in columns.items()
                if n not in RESERVED and _is_column(v, len(completions))
            },
            group_ids=list(columns.get("group_ids") or []),
            trainer_state=given["trainer_state"],
        )
        table = self.score(batch)
        _tell(table, given["log_extra"], given["log_metric"])
        return [table.total(row) for row in range(len(batch))]

    def score(self, batch: RewardBatch, weights: Mapping[str, float] | None = None) -> RewardTable:
        """What every reward gave every completion of a batch of whole groups.

        Args:
            weights: weights that replace those of the rewards, by name.

        Raises:
            RewardError: a reward raised or broke the contract and does not say otherwise, or the share of failures or of
                unscored samples is too large.
        """
        evaluation = score_batch(self.rewards, batch, self.task_column, self.cache)
        table = self._table(evaluation, batch, weights or {})
        self._first_failures.tell(self.rewards, evaluation.columns)
        self._breaker.watch(evaluation.columns, table, len(batch))
        told = mixture_metrics(evaluation.columns, table, batch, self.task_column, sorted(self.tasks))
        table.metrics = merge(table.metrics, told)
        return table

    @property
    def weights(self) -> dict[str, float]:
        """Each reward's weight at the start of training; of weights by task, the largest."""
        return {r.name: _start_weight(r.options.weight) for r in self.rewards}

    def missing_columns(self, columns: Sequence[str]) -> list[str]:
        """Columns that some reward needs and the dataset lacks."""
        return sorted({name for reward in self.rewards for name in reward.missing_columns(columns)})

    def state_dict(self) -> dict[str, Any]:
        """What the mixture remembers between batches: rewards with a `state_dict` of their own, cached scores, and how
        often rewards failed lately. Plain values and tensors; a checkpoint keeps it."""
        return {
            "rewards": states_of(self.rewards),
            "cache": None if self.cache is None else self.cache.state(self.rewards),
            "breaker": self._breaker.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; a reward that has no state there starts without memory, with a warning."""
        for remark in restore(self.rewards, state["rewards"]):
            warn(f"In the checkpoint {remark}.")
        if self.cache is not None and state["cache"] is not None:
            self.cache.restore(state["cache"], self.rewards)
        self._breaker.restore(state["breaker"])

    def check(self, dataset: Iterable[Mapping[str, Any]], **options: Any) -> CheckReport:
        """Try the mixture out on a slice of a dataset before a run; options are those of `covey.rewards.check_rewards`."""
        from covey.rewards.check.run import check_rewards

        return check_rewards(self, dataset, **options)

    def as_functions(self) -> tuple[list[Any], list[float]]:
        """The rewards as plain functions and their weights, for a trainer that takes a list of both.

        Their routes, gates and schedules stay behind: a list of functions has none.
        """
        return [reward.function for reward in self.rewards], list(self.weights.values())

    def _table(self, evaluation: Evaluation, batch: RewardBatch, weights: Mapping[str, float]) -> RewardTable:
        progress = progress_of(batch.trainer_state)
        tasks = batch.columns.get(self.task_column) or [None] * len(batch)
        by_row = {
            r.name: [weight_at(weights.get(r.name, r.options.weight), task, progress) for task in tasks]
            for r in self.rewards
        }
        return RewardTable(
            scores=evaluation.scores,
            weights={name: _start(row_weights, self.weights[name]) for name, row_weights in by_row.items()},
            extras=evaluation.notes.extras,
            metrics=evaluation.notes.metrics,
            optional=frozenset(r.name for r in self.rewards if r.options.optional),
            row_weights={
                name: row_weights for name, row_weights in by_row.items() if len(set(row_weights)) > 1
            },
        )


def as_rewards(functions: Any) -> Mixture:
    """One reward or a list of them as a mixture with unique names; a mixture stays the one it is.

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


def _part(function: Any, name: str, on_error: Any) -> Reward:
    """A reward under the name that it has in the mixture; one that needs no change stays the object it is."""
    part = function if isinstance(function, Reward) else Reward(function, name)
    if part.name != name:
        part = replace(part, name=name)
    if on_error is not None and part.options.on_error == "raise":
        part = replace(part, options=options_of(part, on_error=on_error))
    return part


def _tasks_of(options: RewardOptions) -> set[str]:
    by_task = set(options.weight) - {"*"} if isinstance(options.weight, Mapping) else set()
    return by_task | set(options.tasks or ())


def _start(row_weights: Sequence[float], otherwise: float) -> float:
    return row_weights[0] if row_weights else otherwise


def _start_weight(weight: Any) -> float:
    if isinstance(weight, Mapping):
        return max((weight_at(part, None, 0.0) for part in weight.values()), default=0.0)
    return weight_at(weight, None, 0.0)


def _is_column(values: Any, size: int) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and len(values) == size


def _tell(table: RewardTable, log_extra: Any, log_metric: Any) -> None:
    """Pass on what the rewards noted, and their own means, to a trainer that takes notes."""
    if log_extra is not None:
        for extra, noted in table.extras.items():
            log_extra(extra, noted)
    if log_metric is not None:
        for name, column in table.scores.items():
            values = [score.value for score in column if score.value is not None]
            if values:
                log_metric(f"{name}/mean", sum(values) / len(values))
        for name, metric in table.metrics.items():
            if metric.value is not None:
                log_metric(name, metric.value)
