"""A curriculum: the prompts of each rollout are drawn by what the rollouts before have shown that they teach.

    rollout n is drawn with what is known of rollouts 0 to n - 1 - lag: those that were trained on before it begins

So a draw depends on the settings and the seed, never on when a reward arrived. Every process knows the evidence of all and draws the same
rows. Evaluation has rows of its own.

What a prompt is expected to teach is the chance that its completions do not all agree (`covey.score.pass_rates.teaching`), for then,
and only then, its group has a gradient. With scale_rewards="none" a group that hardly disagrees has a small one: then the chance
that two completions disagree stands for its size. An exact curriculum draws by the square root of that, which makes the variance of a
weighed sum least where values are the second moments of what is summed; a biased one by the value itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from covey.config.choices import LOSS_TYPES
from covey.errors import ConfigError, DatasetError, warn
from covey.metrics import Mean, Metric
from covey.plan import Plan
from covey.runs.record.json_text import Json, json_text
from covey.sample.given_data import MapRows, readable
from covey.sample.task_quota import TaskQuota
from covey.sample.unequal_draw import Floats, chances, drawn, generator_of, weights
from covey.score.pass_rates import Evidence, PassRates, teaching
from covey.trainer.data import NumberedRows, Round, ShardedPrompts

if TYPE_CHECKING:
    from covey.config import GRPOConfig
    from covey.trainer.grpo_trainer import GRPOTrainer

STREAM = 0xC0
"""Part of the key of the random numbers that draw prompts."""


@dataclass(frozen=True)
class PromptDraw:
    """The rows of a rollout and of its rounds of refills, and the weight of each."""

    number: int
    rows: Sequence[int]
    weights: Mapping[int, float]
    metrics: Mapping[str, Metric]


class Curriculum:
    """Draws prompts, and remembers what they taught.

    Args:
        args: the settings.
        kept: numbers of the rows that may be drawn.
        pools: the task of each of them.
        earlier: what an earlier run has shown, rollout by rollout.
        quota: says which task each prompt is of, whose rows are those that may be drawn; None: any.
    """

    def __init__(
        self,
        args: GRPOConfig,
        kept: Sequence[int],
        pools: Sequence[str],
        earlier: Sequence[Sequence[Evidence]] = (),
        quota: TaskQuota | None = None,
    ) -> None:
        self.args, self.earlier, self.quota = args, earlier, quota
        self.memory = PassRates(kept, pools, args.curriculum_half_life)
        self.begin()

    def begin(self) -> None:
        """Forget everything but what the earlier run has shown, which counts as if its last rollout had come before the first."""
        self.memory.forget()
        for number, evidence in enumerate(self.earlier, -len(self.earlier)):
            self.memory.learn(number, evidence)

    def learn(self, number: int, of_ranks: Iterable[Iterable[Evidence]]) -> None:
        """Take in the evidence of a rollout, that of every process."""
        self.memory.learn(number, (evidence for part in of_ranks for evidence in part))

    def draw(self, number: int, size: int) -> PromptDraw:
        """Draw the rows of rollout `number`: `size` of them, and as many for each round of dynamic sampling."""
        args = self.args
        passes, failures = self.memory.posterior(number)
        is_scaled = args.advantage_estimator == "grpo" and args.scale_rewards != "none"
        values = teaching(passes, failures, args.num_generations if is_scaled else 2)
        places, chance, weight = self._drawn(number, size, values)
        own, rows = places[:size], self.memory.rows
        metrics = {
            "curriculum/effective_prompts": size**2 / float((chance**2).sum()),
            "curriculum/pass_rate": float((passes / (passes + failures))[own].mean()),
            "curriculum/unseen_share": float((~self.memory.seen).mean()),
            "curriculum/largest_weight": float(weight[own].max()),
        }
        by_row = {int(rows[place]): float(weight[place]) for place in places}
        return PromptDraw(number, rows[places].tolist(), by_row, {n: Mean(v) for n, v in metrics.items()})

    def _drawn(self, number: int, size: int, values: Floats) -> tuple[list[int], Floats, Floats]:
        """Return the places of the rows that are drawn, and of all rows the chance and the weight; tasks with shares are drawn from each by itself."""
        args, is_exact = self.args, self.args.curriculum == "exact"
        chance, weight, fresh = np.zeros(len(values)), np.ones(len(values)), list[int]()
        generator, own = generator_of(args.seed, STREAM, number), np.zeros(size, dtype=np.int64)
        times = 1 + args.dynamic_sampling * args.dynamic_sampling_rounds
        tasks = np.asarray([0] * size if self.quota is None else self.quota.tasks(number, size))
        for task in np.unique(tasks):
            is_there = np.full(len(values), True) if self.quota is None else self.memory.pools == task
            pool, count = np.flatnonzero(is_there), int((tasks == task).sum())
            wanted = np.sqrt(values[pool]) if is_exact else values[pool]
            chance[pool] = chances(wanted, count, args.curriculum_floor)
            if is_exact:
                weight[pool] = weights(chance[pool], count)
            found = [pool[drawn(chance[pool], count, generator)] for _ in range(times)]
            own[tasks == task] = found[0]
            fresh += [int(place) for more in found[1:] for place in more]
        return [*own.tolist(), *fresh], chance, weight

    def rollouts(self, trainer: GRPOTrainer, draws: Sequence[PromptDraw]) -> list[list[Round]]:
        """Return the rounds of each rollout, with this process's prompts.

        Raises:
            DatasetError: a row cannot be used.
        """
        rows = NumberedRows(readable(trainer.train_dataset))
        made = trainer.prompts.rollouts([rows[i] for draw in draws for i in draw.rows], len(draws))
        for rounds, draw in zip(made, draws, strict=True):
            for number, round_ in enumerate(rounds):
                own, fresh = ([replace(p, weight=draw.weights[p.row]) for p in part] for part in round_)
                rounds[number] = own, fresh
        return made


def make_curriculum(
    args: GRPOConfig, prompts: ShardedPrompts, dataset: object, column: str
) -> Curriculum | None:
    """Build the curriculum of a run; None where none is asked for.

    Args:
        column: of the tasks; empty: there are none.

    Raises:
        DatasetError: the dataset is read from front to back.
        ConfigError: `curriculum_from` is no run whose prompts are recorded, or steps have no room for the weights of an exact one.
    """
    if args.curriculum is None or dataset is None:
        return None
    kept = prompts.kept
    if kept is None:
        raise DatasetError(
            f"curriculum={args.curriculum!r} draws rows by number, and the training dataset is a stream, which is read from front to back. Give "
            "rows with numbers (a list, datasets.Dataset), or leave the curriculum out."
        )
    check_room(args, prompts.plan, len(kept))
    rows = readable(dataset)
    pools = [str(rows[number].get(column)) if column else "" for number in kept]
    earlier = [] if args.curriculum_from is None else evidence_of_run(args.curriculum_from, kept, rows)
    return Curriculum(args, kept, pools, earlier, prompts.quota)


def check_room(args: GRPOConfig, plan: Plan, prompts: int) -> None:
    """Raise where the weights of an exact curriculum cancel; warn where there is nothing to choose among so many prompts."""
    kind = f"curriculum={args.curriculum!r}"
    if (
        args.curriculum == "exact"
        and LOSS_TYPES[args.loss_type].reduction == "dapo"
        and plan.prompts_per_step <= 1
    ):
        raise ConfigError(
            f"{kind} cannot be exact with loss_type={args.loss_type!r} and one prompt per optimizer step: the loss is divided by the tokens of "
            "the step, which are weighed as the prompt is, and so the weight cancels. Raise gradient_accumulation_steps, take loss_type='dr_grpo', "
            "or say curriculum='biased'."
        )
    if prompts <= plan.prompts_per_rollout:
        warn(
            f"{kind} has no effect: one round of sampling takes {plan.prompts_per_rollout} prompts, and there are {prompts}, so all are drawn "
            "alike. Give more prompts, or lower per_device_train_batch_size or gradient_accumulation_steps."
        )


def evidence_of_run(folder: str, kept: Sequence[int], rows: MapRows) -> list[list[Evidence]]:
    """Return what an earlier run has shown of the rows of this one, step by step. Prompts are known by what they say,
    those that show pictures not at all.

    Raises:
        ConfigError: there is no such run, its prompts are not recorded, or none of them is asked for here.
    """
    numbers: dict[object, list[int]] = {}
    for number in kept:
        prompt = rows[number]["prompt"]
        numbers.setdefault(prompt if isinstance(prompt, str) else json_text(prompt), []).append(number)
    groups, by_step = _recorded_groups(folder), dict[int, list[Evidence]]()
    if all(lines[0]["prompt"] is None for lines in groups.values()):
        raise ConfigError(
            f"curriculum_from={folder!r}: its record holds no prompts to know rows by. Name a run that took a step, with "
            "record_completions on."
        )
    for (step, _), lines in sorted(groups.items()):
        found, own = (
            numbers.get(lines[0]["prompt"], []),
            [x["total"] for x in lines if x["total"] is not None],
        )
        if len(found) > 1:  # several rows say the same: the one of the same number
            found = [row for row in found if row == lines[0]["row"]]
        if found and own:
            by_step.setdefault(step, []).append(Evidence(found[0], len(own), sum(own), min(own), max(own)))
    if not by_step:
        raise ConfigError(
            f"curriculum_from={folder!r}: none of the prompts that it scored is one of train_dataset, by its text; those that show pictures are "
            "not known again. Name a run on prompts of this dataset, or leave it out."
        )
    return [by_step[step] for step in sorted(by_step)]


def _recorded_groups(folder: str) -> dict[tuple[int, int], list[Json]]:
    """Return the completions of a run's record by step and group; raise a ConfigError where there is none."""
    from covey.runs.record.reader import Run

    groups: dict[tuple[int, int], list[Json]] = {}
    try:
        for table in Run(folder).group_tables(["step", "group", "row", "prompt", "total"]):
            for line in table.to_pylist():
                groups.setdefault((line["step"], line["group"]), []).append(line)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"curriculum_from={folder!r} is no run that can be read: {error}") from error
    return groups
