"""Scores of a policy on the eval sets of a recipe, with intervals; and a paired test against another policy.

The evaluation is the trainer's own: a GRPOTrainer without training data evaluates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import PrinterCallback, ProgressCallback

from covey.errors import DatasetError
from covey.recipes.recipe import Recipe
from covey.runs.accuracy import Comparison, compare_prompts, estimate_reward
from covey.runs.statistics import Interval
from covey.types import PromptContent
from covey.vision.blocks import without_payloads

if TYPE_CHECKING:
    from covey.trainer.evaluation import Evaluation

TOTAL = "reward"
"""Name of the weighted sum of the rewards."""


@dataclass(frozen=True)
class RewardRow:
    """One reward on one eval set, or on one task of it."""

    task: str | None
    """None: all tasks."""
    name: str
    """`reward` for the weighted sum, else the reward's name."""
    prompts: int
    """Prompts with at least one completion that it scored."""
    interval: Interval
    pass_at: dict[int, float]
    """Unbiased pass@k, where all values are 0 or 1."""


@dataclass(frozen=True)
class RewardChange:
    """One reward of two policies on the same prompts, or on those of one task."""

    task: str | None
    name: str
    comparison: Comparison


@dataclass(frozen=True)
class EvalScores:
    """Completions and scores of one policy on one eval set, prompt by prompt."""

    prompts: list[PromptContent]
    """Of pictures they hold the places; see `pictures`."""
    tasks: list[str | None]
    completions: list[list[PromptContent]]
    values: dict[str, list[list[float | None]]]
    """By reward, `reward` first: one value per completion of each prompt; None: it does not apply, or failed."""
    metrics: dict[str, float]
    """Everything that the trainer reports, without a prefix."""
    pictures: list[list[str]] = field(default_factory=list)
    """SHA-256 of each picture that was shown, by prompt."""

    @classmethod
    def of(cls, found: Evaluation, metrics: Mapping[str, float], task_column: str) -> EvalScores:
        """Gather the completions of one evaluation by prompt."""
        rows: dict[int, list[int]] = {}
        for row, group in enumerate(found.group_ids):
            rows.setdefault(group, []).append(row)
        groups = list(rows.values())
        tasks = found.columns.get(task_column, [None] * len(found.group_ids))
        every = {TOTAL: found.totals, **found.scores}
        return cls(
            prompts=[without_payloads(found.prompts[g[0]]) for g in groups],
            tasks=[None if tasks[g[0]] is None else str(tasks[g[0]]) for g in groups],
            completions=[[found.completions[row] for row in g] for g in groups],
            values={name: [[column[row] for row in g] for g in groups] for name, column in every.items()},
            metrics=dict(metrics),
            pictures=[list(found.pictures[g[0]]) for g in groups],
        )

    @property
    def names_of_tasks(self) -> list[str | None]:
        """None for all prompts, then each task; a task that has all prompts is left out."""
        tasks = sorted({task for task in self.tasks if task is not None})
        return [None, *(tasks if len(tasks) > 1 or None in self.tasks else ())]

    def rows(self) -> Iterator[RewardRow]:
        """Yield every reward over all prompts and by task, with its interval; rewards without a value are left out."""
        for task in self.names_of_tasks:
            for name in self.values:
                found = estimate_reward(self.scored(name, task))
                if found is not None:
                    yield RewardRow(task, name, found.prompts, found.interval, found.pass_at)

    def scored(self, name: str, task: str | None) -> list[list[float]]:
        """Return the values of one reward by prompt, those that are None left out."""
        column = zip(self.values[name], self.tasks, strict=True)
        return [[v for v in values if v is not None] for values, t in column if task is None or t == task]


def measure(recipe: Recipe) -> dict[str, EvalScores]:
    """Evaluate the recipe's policy on each of its eval sets, and return its scores by eval set.

    Raises:
        DatasetError: the recipe has none.
    """
    found: list[Evaluation] = []
    own: Any = recipe.imported("compute_metrics")

    def keep(evaluation: Evaluation) -> Mapping[str, float]:
        found.append(evaluation)
        return own(evaluation) if own is not None else {}

    datasets = recipe.eval_dataset
    if datasets is None:
        raise DatasetError(f"{recipe.root.mark.source} has no eval sets. Add a section 'eval'.")
    if not isinstance(datasets, dict):
        datasets = {"eval": datasets}
    trainer = recipe.trainer(train_dataset=None, eval_dataset=datasets, compute_metrics=keep, callbacks=None)
    for printer in (PrinterCallback, ProgressCallback):  # standard output is the caller's
        trainer.remove_callback(printer)
    measured = {}
    for name, dataset in datasets.items():
        metrics = trainer.evaluate(dataset, metric_key_prefix="eval")
        plain = {key.removeprefix("eval_"): value for key, value in metrics.items()}
        measured[name] = EvalScores.of(found[-1], plain, recipe.config.task_column)
    return measured


def compare(before: EvalScores, after: EvalScores) -> list[RewardChange]:
    """Compare every reward that both have, over all prompts and by task.

    Raises:
        DatasetError: the two answered other prompts.
    """
    if (before.prompts, before.pictures) != (after.prompts, after.pictures):
        raise DatasetError(
            f"The two evaluations cannot be compared: {len(before.prompts)} prompts here, {len(after.prompts)} there, and "
            "not the same ones, or with other pictures. Evaluate both on the same dataset."
        )
    names = [name for name in before.values if name in after.values]
    changes = (
        RewardChange(task, name, compare_prompts(before.scored(name, task), after.scored(name, task)))
        for task in before.names_of_tasks
        for name in names
    )
    return [change for change in changes if change.comparison.test.pairs]
