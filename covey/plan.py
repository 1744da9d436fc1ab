"""The arithmetic of batches: what the settings mean, before anything runs.

The unit of the settings is the completion: a micro-batch of `micro_batch` completions is what one forward pass sees,
`accumulation` of them on each of `ranks` processes make an optimizer step. A *rollout* is what is sampled under one
set of weights; it feeds one or more optimizer steps, `iterations` times over.

    rollout   ├── optimizer step ──┤├── optimizer step ──┤      × iterations
    rank 0    [micro][micro]         [micro][micro]
    rank 1    [micro][micro]         [micro][micro]

Completions are laid out flat, group after group: first by optimizer step, then by rank, then by micro-batch. So the
same step holds the same groups however many processes share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from covey.errors import ConfigError, warn

T = TypeVar("T")


class Figure(str):
    """A text for people that knows its value, for machines: a number, or several by name."""

    value: object

    def __new__(cls, text: str, value: object) -> Figure:
        figure = super().__new__(cls, text)
        figure.value = value
        return figure


@dataclass(frozen=True)
class Plan:
    """Numbers of prompts, groups, micro-batches and optimizer steps that the settings mean. All counts, no behaviour."""

    group_size: int
    """Completions per prompt (`num_generations`)."""
    micro_batch: int
    """Completions per forward pass and process (`per_device_train_batch_size`)."""
    accumulation: int
    """Micro-batches per optimizer step and process."""
    ranks: int
    """Processes."""
    steps_per_generation: int
    """Micro-batches that are sampled at once, per process."""
    iterations: int
    """How often a rollout is trained on (`num_iterations`)."""
    num_prompts: int | None = None
    """Rows of the dataset; None for a stream."""
    max_steps: int = -1
    """Optimizer steps that were asked for; negative: by epochs."""
    epochs: float = 1.0
    first: int | None = None
    """Completions of a prompt before groups grow: `group_size` is then a mean. None: groups are of one size."""
    replayed: int = 0
    """Groups of a rollout, at most, that are trained on again instead of being sampled."""

    @property
    def completions_per_step(self) -> int:
        """Completions in one optimizer step, over all processes."""
        return self.micro_batch * self.accumulation * self.ranks

    @property
    def micro_batches_per_pass(self) -> int:
        """Micro-batches per process that one round of sampling feeds (one pass)."""
        return max(self.steps_per_generation, self.accumulation)

    @property
    def micro_batches_per_rollout(self) -> int:
        """Micro-batches per process from one round of sampling to the next, all passes."""
        return self.micro_batches_per_pass * self.iterations

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps from one round of sampling to the next."""
        return self.micro_batches_per_rollout // self.accumulation

    @property
    def prompts_per_rollout(self) -> int:
        """Prompts, over all processes, that one round of sampling draws."""
        return self.micro_batch * self.micro_batches_per_pass * self.ranks // self.group_size

    @property
    def prompts_per_step(self) -> float:
        """Prompts that one optimizer step learns from."""
        return self.completions_per_step / self.group_size

    @property
    def is_cycled(self) -> bool:
        """Whether the dataset is too small for one rollout, so that its prompts are repeated within it."""
        return self.num_prompts is not None and self.num_prompts < self.prompts_per_rollout

    @property
    def rollouts_per_epoch(self) -> int | None:
        return None if self.num_prompts is None else max(1, self.num_prompts // self.prompts_per_rollout)

    @property
    def dropped_prompts(self) -> int:
        """Prompts per epoch that do not fill a rollout; another shuffle leaves out others."""
        if self.num_prompts is None or self.is_cycled:
            return 0
        return self.num_prompts % self.prompts_per_rollout

    @property
    def steps_per_epoch(self) -> int | None:
        return None if self.rollouts_per_epoch is None else self.rollouts_per_epoch * self.steps_per_rollout

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        if self.max_steps > 0:
            return self.max_steps
        assert self.steps_per_epoch is not None, "a stream needs max_steps"
        return math.ceil(self.epochs * self.steps_per_epoch)

    @property
    def keeps_groups_whole(self) -> bool:
        """Whether each process owns whole groups in every optimizer step, so that nothing has to be exchanged."""
        are_equal = self.first is None or self.ranks == 1
        return are_equal and self.micro_batch * self.accumulation % self.group_size == 0

    @property
    def prompts_sharing(self) -> int:
        """Prompts, over all processes, that share completions where groups grow: those of an optimizer step, if it holds whole groups.

        Otherwise, and where a step takes several rounds of sampling, those of a round.
        """
        rounds = self.micro_batches_per_pass // self.steps_per_generation
        steps = self.micro_batches_per_pass // self.accumulation
        is_whole = self.completions_per_step % self.group_size == 0
        return self.prompts_per_rollout // max(rounds, steps if is_whole else 1)

    def owner(self, group: int) -> int:
        """Return the process that samples and scores a group of the rollout: the one that trains on its first completion."""
        return (group * self.group_size % self.completions_per_step) // (self.micro_batch * self.accumulation)

    def places(self, rank: int) -> list[int]:
        """Return the places, among the groups of a rollout, of those that a process samples and scores."""
        return [group for group in range(self.prompts_per_rollout) if self.owner(group) == rank]

    def micro_batch_rows(self, rank: int, number: int) -> range:
        """Return flat indices, within the rollout, of the completions in micro-batch `number` of a process (one pass)."""
        step, micro = divmod(number % self.micro_batches_per_pass, self.accumulation)
        start = step * self.completions_per_step + (rank * self.accumulation + micro) * self.micro_batch
        return range(start, start + self.micro_batch)

    def table(self) -> list[tuple[str, Figure]]:
        """Return what is printed before training: a label and a value per line."""
        n, sampled = self.group_size, self.prompts_per_rollout * self.group_size
        mean = "" if self.first is None else f" on average, {self.first} at first"
        rows = {
            "prompts per optimizer step": Figure(f"{self.prompts_per_step:g}", self.prompts_per_step),
            "completions per optimizer step": Figure(
                f"{self.completions_per_step} ({n} per prompt{mean})", self.completions_per_step
            ),
            "micro-batches": Figure(
                f"{self.accumulation} of {self.micro_batch} completions on each of {self.ranks} process(es)",
                {"number": self.accumulation, "completions": self.micro_batch, "processes": self.ranks},
            ),
            "sampled at once": Figure(
                f"{self.prompts_per_rollout} prompts, {sampled} completions; feeds {self.steps_per_rollout} optimizer step(s)",
                {
                    "prompts": self.prompts_per_rollout,
                    "completions": sampled,
                    "optimizer steps": self.steps_per_rollout,
                },
            ),
        }
        if self.replayed:
            text = f"up to {self.replayed} of the {self.prompts_per_rollout} prompts' groups, in place of fresh ones"
            rows["trained on again"] = Figure(text, self.replayed)
        if self.iterations > 1:
            rows["passes over each sample"] = Figure(str(self.iterations), self.iterations)
        if self.num_prompts is not None:
            text = f"{self.steps_per_epoch} from {self.num_prompts} prompts"
            rows["steps per epoch"] = Figure(text, self.steps_per_epoch)
        if self.dropped_prompts:
            text = f"{self.dropped_prompts} (they do not fill a round)"
            rows["prompts left out per epoch"] = Figure(text, self.dropped_prompts)
        rounds = math.ceil(self.total_steps / self.steps_per_rollout)
        rows["optimizer steps in total"] = Figure(str(self.total_steps), self.total_steps)
        text = f"{rounds * sampled} in {rounds} rounds of sampling"
        rows["completions in total"] = Figure(text, rounds * sampled)
        return list(rows.items())

    def __str__(self) -> str:
        rows = self.table()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)


def make_plan(
    *,
    group_size: int,
    micro_batch: int,
    accumulation: int,
    ranks: int = 1,
    steps_per_generation: int | None = None,
    generation_batch_size: int | None = None,
    iterations: int = 1,
    num_prompts: int | None = None,
    max_steps: int = -1,
    epochs: float = 1.0,
    first: int | None = None,
    replayed: int = 0,
) -> Plan:
    """Work out a plan from the settings.

    Where an optimizer step would not hold whole groups, more micro-batches are accumulated, up to the next multiple,
    with a warning; unless `steps_per_generation` or `generation_batch_size` says how much is sampled at once. Where that ends
    at another time than optimizer steps, more is sampled, with a warning.

    Raises:
        ConfigError: explicit settings cannot hold whole groups; the message proposes the nearest that can. Or groups would grow, and
            there is no other prompt to share completions with; or nothing would be sampled, as old groups take all places.
    """
    if group_size < 2:
        raise ConfigError(
            f"num_generations is {group_size}; it must be at least 2: a completion is judged against its siblings, and "
            "one alone has none."
        )
    per_micro_step = micro_batch * ranks
    sampled = _steps_per_generation(
        steps_per_generation, generation_batch_size, group_size, accumulation, per_micro_step
    )
    if sampled is None:
        quantum = group_size // math.gcd(group_size, per_micro_step)
        sampled = math.ceil(accumulation / quantum) * quantum
        if sampled != accumulation:
            warn(
                f"An optimizer step of {accumulation * per_micro_step} completion(s) does not hold whole groups of "
                f"{group_size}: gradient_accumulation_steps is {sampled} instead of {accumulation}, so that a step has "
                f"{sampled * per_micro_step} completions."
            )
        accumulation = sampled
    if num_prompts == 0:
        raise ConfigError("The training dataset has no rows. Give at least one prompt.")
    if num_prompts is None and max_steps <= 0:
        raise ConfigError("The training dataset is a stream of unknown length. Set max_steps.")
    counts = group_size, micro_batch, accumulation, ranks, sampled, iterations
    plan = Plan(*counts, num_prompts, max_steps, epochs, first, replayed)
    check_room(plan)
    return plan


def check_room(plan: Plan) -> None:
    """Raise where groups that grow have no others to share with, or where old groups would take all places."""
    if plan.first is not None and plan.prompts_sharing < 2:
        raise ConfigError(
            "group_allocation='grow' has no effect: an optimizer step has one prompt, which shares its completions with no other. Raise "
            "per_device_train_batch_size or gradient_accumulation_steps, or lower num_generations."
        )
    if plan.replayed >= plan.prompts_per_rollout:
        raise ConfigError(
            f"replay_groups is {plan.replayed}, and a round of sampling takes {plan.prompts_per_rollout} prompt(s): old groups would take all places. "
            f"Set it to {plan.prompts_per_rollout - 1} at most, or raise per_device_train_batch_size or gradient_accumulation_steps."
        )


def warn_if_cycled(plan: Plan) -> None:
    """Warn where the dataset has fewer prompts than one round of sampling takes."""
    if plan.is_cycled:
        warn(
            f"The dataset has {plan.num_prompts} prompt(s), and one round of sampling takes {plan.prompts_per_rollout}: "
            "prompts are repeated within a round. Lower per_device_train_batch_size or gradient_accumulation_steps, or "
            "raise num_generations, to avoid it."
        )


def cut(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """Return `count` consecutive parts of the same size, such as the rounds of a rollout."""
    size = len(values) // count
    return [values[i * size : (i + 1) * size] for i in range(count)]


def _steps_per_generation(
    steps: int | None, batch: int | None, group_size: int, accumulation: int, per_micro_step: int
) -> int | None:
    """Return the micro-batches per process that are sampled at once, from whichever of the two settings was given.

    Raises:
        ConfigError: the two contradict one another, or hold no whole groups.
    """
    if batch is not None and batch % per_micro_step:
        raise ConfigError(
            f"generation_batch_size is {batch}; it must be a multiple of per_device_train_batch_size × processes = "
            f"{per_micro_step}. The nearest are {_joined(_nearest(batch, per_micro_step))}."
        )
    if batch is not None and steps not in (None, batch // per_micro_step):
        raise ConfigError(
            f"generation_batch_size {batch} means steps_per_generation {batch // per_micro_step}, but steps_per_generation is "
            f"{steps}. Set one of the two."
        )
    sampled = steps if batch is None else batch // per_micro_step
    if sampled is None:
        return None
    if sampled * per_micro_step % group_size:
        near = _nearest(sampled, group_size // math.gcd(group_size, per_micro_step))
        raise ConfigError(
            f"What is sampled at once, {sampled * per_micro_step} completions (steps_per_generation {sampled}), does not "
            f"hold whole groups of num_generations {group_size}. The nearest steps_per_generation that do: "
            f"{_joined(near)} (generation_batch_size {_joined(n * per_micro_step for n in near)})."
        )
    if sampled % accumulation and accumulation % sampled:
        unit = math.lcm(accumulation, group_size // math.gcd(group_size, per_micro_step))
        ends_together = math.ceil(sampled / unit) * unit
        warn(
            f"steps_per_generation {sampled} and gradient_accumulation_steps {accumulation} do not divide one another: "
            f"{ends_together} micro-batches are sampled at once instead of {sampled}, so that optimizer steps and rounds of "
            "sampling end together."
        )
        return ends_together
    return sampled


def _nearest(number: int, factor: int) -> list[int]:
    """Return the positive multiples of `factor` just below and above a number."""
    lower = number // factor * factor
    return sorted({max(lower, factor), lower + factor})


def _joined(numbers: Iterable[int]) -> str:
    return " and ".join(map(str, numbers))
