"""Sample and score, without an update: what evaluation is.

Nothing here touches a training state: the engine draws from its own random numbers, and metrics are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from covey.metrics import Ledger, Metric, merge
from covey.rewards.own import own
from covey.runs.accuracy import estimate_reward
from covey.sample.prompts import PromptReader
from covey.sample.sampling import Sampling
from covey.score.score_metrics import completion_metrics, reward_metrics
from covey.trainer.data import are_tasks
from covey.types import Prompt, PromptContent, ScoredGroup
from covey.vision.album import Album

if TYPE_CHECKING:
    from covey.score.scorer import Scorer
    from covey.trainer.sampled import Sampled


def sample_and_score(
    sample: Callable[[Sequence[Prompt], int, Sampling], Sampled],
    scorer: Scorer,
    prompts: Sequence[Prompt],
    group_size: int,
    settings: Sampling,
    completions_per_call: int,
    trainer_state: object = None,
) -> tuple[list[ScoredGroup], dict[str, Metric]]:
    """Sample and score every prompt once, `group_size` completions each.

    Args:
        sample: prompts, completions of each, and how they are sampled → groups.
        completions_per_call: completions that are sampled and scored together; at least one group is.

    Returns:
        The groups in the order of the prompts, with advantages of 0, and the sums of their metrics.
    """
    size = max(1, completions_per_call // group_size)
    groups: list[ScoredGroup] = []
    metrics: dict[str, Metric] = {}
    for first in range(0, len(prompts), size):
        part = prompts[first : first + size]
        sampled = sample(part, group_size, settings)
        scored, noted = scorer.run_rewards(sampled.groups, trainer_state, own_columns=sampled.columns)
        sampled.release()
        given = reward_metrics(scored, [reward.name for reward in scorer.rewards])
        metrics = merge(metrics, noted, given, sampled.metrics, completion_metrics(sampled.groups))
        groups += scored
    return groups, metrics


@dataclass(frozen=True)
class Evaluation:
    """The input of `compute_metrics`: every completion of an evaluation, side by side, in objects of its own."""

    prompts: list[PromptContent]
    completions: list[PromptContent]
    columns: dict[str, list[Any]]
    """The dataset's other columns, repeated for each completion."""
    scores: dict[str, list[float | None]]
    """By reward name; None where it does not apply or failed."""
    totals: list[float | None]
    """Weighted sums."""
    group_ids: list[int]
    """Equal for completions of the same prompt."""
    pictures: list[tuple[str, ...]] = field(default_factory=list)
    """SHA-256 of each picture that the policy was shown, for each completion; see `covey.types.Picture`."""

    @classmethod
    def of(cls, groups: Sequence[ScoredGroup]) -> Evaluation:
        """Lay the completions of all groups side by side."""
        each = [(number, s, i) for number, s in enumerate(groups) for i in range(len(s.totals))]
        contents, prompts = [s.group.contents() for s in groups], [s.group.prompts() for s in groups]
        columns = list(dict.fromkeys(name for s in groups for name in s.group.prompt.columns))
        names, album = list(dict.fromkeys(name for s in groups for name in s.scores)), Album()
        return cls(
            prompts=[own(prompts[number][i], album) for number, _, i in each],
            completions=[contents[number][i] for number, _, i in each],
            columns={c: [own(s.group.prompt.columns.get(c), album) for _, s, _ in each] for c in columns},
            scores={n: [s.scores[n][i].value for _, s, i in each] for n in names},
            totals=[s.totals[i] for _, s, i in each],
            group_ids=[number for number, _, _ in each],
            pictures=[tuple(p.digest for p in s.group.prompt.pictures) for _, s, _ in each],
        )


ComputeMetrics = Callable[[Evaluation], Mapping[str, float]]


def own_prompts(
    rows: Iterable[Mapping[str, object]], reader: PromptReader, rank: int, ranks: int
) -> list[Prompt]:
    """Read the prompts of every `ranks`-th row, from the `rank`-th on."""
    return [
        reader.read(row, number, (number, 0)) for number, row in enumerate(rows) if number % ranks == rank
    ]


def joined(
    parts: Sequence[tuple[Mapping[str, Metric], Sequence[ScoredGroup]]],
    task_column: str,
) -> tuple[dict[str, float], list[ScoredGroup]]:
    """Return numbers and groups of an evaluation, in the order of the rows, from those of every process."""
    groups = sorted((s for _, part in parts for s in part), key=lambda s: s.group.prompt.row)
    return Ledger().reduce(metrics for metrics, _ in parts) | summary(groups, task_column), groups


def summary(groups: Sequence[ScoredGroup], task_column: str) -> dict[str, float]:
    """Return intervals over prompts, pass@k, and the same for each task.

    A reward whose values are all 0 or 1 is taken for a verdict, and its mean for an accuracy.

    Returns:
        `reward/low`, `reward/high` (95 %), `rewards/<name>/low`, `/high`, `/pass@<k>`, and `tasks/<task>/...`.
    """
    numbers, tasks = _summary(groups), dict[str, list[ScoredGroup]]()
    for s in groups:
        task = s.group.prompt.columns.get(task_column)
        if task is not None:
            tasks.setdefault(str(task), []).append(s)
    for task, part in tasks.items() if are_tasks(len(tasks), len(groups)) else ():
        totals = [t for s in part for t in s.totals if t is not None]
        numbers[f"tasks/{task}/count"] = float(len(totals))
        if totals:
            numbers[f"tasks/{task}/reward"] = sum(totals) / len(totals)
        numbers |= {f"tasks/{task}/{name}": value for name, value in _summary(part).items()}
    return numbers


def _summary(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return bounds and pass@k of the total and of every reward; `reward` itself has no pass@k."""
    columns = {"reward": [[t for t in s.totals if t is not None] for s in groups]}
    for name in dict.fromkeys(name for s in groups for name in s.scores):
        columns[f"rewards/{name}"] = [
            [x.value for x in s.scores[name] if x.value is not None] for s in groups
        ]
    numbers: dict[str, float] = {}
    for name, by_prompt in columns.items():
        estimate = estimate_reward(by_prompt)
        if estimate is None:
            continue
        numbers |= {f"{name}/low": estimate.interval.low, f"{name}/high": estimate.interval.high}
        if name != "reward":
            numbers |= {f"{name}/pass@{k}": value for k, value in estimate.pass_at.items()}
    return numbers
