"""The say of each task in the gradient, and factors that make it the same for all.

Over a rollout, with w_i the weight of a token of completion i in the loss of its step (`covey.update.reduction`), n_i its tokens there, and A its advantage,

    S_k = Σ_{i of task k} w_i Σ_t |A_it|              what task k has to say: the size of its part of the gradient, as far as advantages make it
    f_k = Σ_i w_i n_i / (K S_k)                       with this factor on its advantages, all K tasks of the rollout have as much

So a factor does not change where a task has longer completions, more of them, or rewards of another size, and advantages have a mean size of 1 over
all tasks that say something. A task of which no completion has an advantage says nothing, and the others do not take its part. The divergence
and the entropy bonus are left as they are.

It is another objective than the sum of rewards: with J_k what task k earns on average, the ascent is along Σ_k ∇J_k / S_k in place of Σ_k N_k ∇J_k. As
S_k comes from the same completions, it is not without bias for that either: it is a ratio of two estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

from covey.metrics import Mean, Metrics
from covey.update.samples import Sample


@dataclass(frozen=True)
class TaskSay:
    """Hold what a task has in a rollout."""

    rows: int
    """Completions."""
    weight: float
    """Σ w n over them: the weight of their tokens."""
    size: float
    """Σ w Σ |A| over them."""

    @classmethod
    def summed(cls, parts: Iterable[TaskSay]) -> TaskSay:
        """Return the sum of several parts of one task, the same in whatever order they come."""
        kept = list(parts)
        return cls(sum(p.rows for p in kept), fsum(p.weight for p in kept), fsum(p.size for p in kept))


Says = Mapping[str | None, TaskSay]
"""By task; None: of completions whose rows name none."""


def joined_says(of_ranks: Sequence[Says]) -> Says:
    """Return what each task has in all processes."""
    tasks = dict.fromkeys(task for says in of_ranks for task in says)
    return {task: TaskSay.summed(says[task] for says in of_ranks if task in says) for task in tasks}


def equal_factors(says: Says) -> dict[str | None, float]:
    """Return the factor f of each task; 1 for those that say nothing."""
    part = fsum(say.weight for say in says.values()) / max(1, len(says))
    return {task: part / say.size if say.size else 1.0 for task, say in says.items()}


def say_metrics(own: Says, tasks: Iterable[str], factors: Mapping[str | None, float] | None) -> Metrics:
    """Return the shares that each task has of the completions of this process, and of their say in the gradient.

    Args:
        tasks: those that are there although no completion is of them.
        factors: of all processes; None: advantages are trained on as they are.
    """
    sizes = {task: say.size * (1.0 if factors is None else factors[task]) for task, say in own.items()}
    rows, size = sum(say.rows for say in own.values()), fsum(sizes.values())
    metrics = {}
    for task in {*tasks, *(task for task in own if task is not None)}:
        there = own.get(task, TaskSay(0, 0.0, 0.0))
        metrics[f"tasks/{task}/sample_share"] = Mean(there.rows, rows)
        metrics[f"tasks/{task}/advantage_share"] = Mean(sizes.get(task, 0.0), size)
        if factors is not None and task in factors:
            metrics[f"tasks/{task}/factor"] = Mean(factors[task])
    return metrics


@dataclass(frozen=True)
class Tasks:
    """The tasks of a run, and how their says go into the gradient."""

    column: str = ""
    """Names the task of a row; empty: none does."""
    names: Sequence[str] = ()
    """Those that the training dataset is known to have."""
    are_equal: bool = False
    """Whether all have the same say; else they have what their completions come to."""

    def of(self, sample: Sample) -> str | None:
        """Return the task of a completion; None where its row names none."""
        named = sample.prompt.columns.get(self.column)
        return None if named is None else str(named)

    def says(
        self, samples: Sequence[Sample], cut: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]
    ) -> Says:
        """Return what each task has in the micro-batches of one process.

        Args:
            cut: the numbers of each micro-batch's samples.
            weights: of a token of each of these samples.
        """
        found: dict[str | None, list[TaskSay]] = {}
        for numbers, of_rows in zip(cut, weights, strict=True):
            for sample, weight in zip((samples[i] for i in numbers), of_rows, strict=True):
                say = TaskSay(1, weight * sample.completion.num_written, weight * sample.size)
                found.setdefault(self.of(sample), []).append(say)
        return {task: TaskSay.summed(parts) for task, parts in found.items()}

    def weighed(self, samples: Sequence[Sample], factors: Mapping[str | None, float]) -> list[Sample]:
        """Return completions with their advantages times the factors of their tasks."""
        scaled = []
        for sample in samples:
            factor, by_turn = factors[self.of(sample)], sample.turn_advantages
            turns = None if by_turn is None else tuple(a * factor for a in by_turn)
            scaled.append(replace(sample, advantage=sample.advantage * factor, turn_advantages=turns))
        return scaled
