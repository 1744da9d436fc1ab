"""Seconds per step from a few small steps of the real trainer, on the real data, in a folder that is thrown away.

The first rehearsal is small in every way. What it costs says how long completions may be and how many prompts a step may
have in the next one. It ends when the time is over, or the whole step has been rehearsed. Steps of several processes are
rehearsed on one, with the share of one.
"""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.plan import Plan
from covey.recipes import Recipe

PROBE_TOKENS = 16
"""Length of completions in the first rehearsal."""
STEPS = 3
"""Of each rehearsal; the first warms up, and the faster of the others counts: what else the machine does is no part."""

QUIET = {
    "train.report_to": "none", "train.record": "false", "train.save_strategy": "'no'", "train.push_to_hub": "false",
    "train.eval_strategy": "'no'", "train.eval_on_start": "false", "train.load_best_model_at_end": "false",
    "train.disable_tqdm": "true", "train.display": "plain", "train.logging_strategy": "steps",
    "train.logging_steps": "1", "train.log_completions": "false", "train.resume_from_checkpoint": "", "eval": "",
    "train.num_iterations": "1", "train.steps_per_generation": "", "train.generation_batch_size": "", "callbacks": "",
    "compute_metrics": "", "train.max_steps": str(STEPS),
}  # fmt: skip
"""What a rehearsal leaves out of a recipe: everything that writes, prints or evaluates."""


@dataclass(frozen=True)
class Scale:
    """How large a step is."""

    groups: int
    tokens: int
    """Limit of a completion."""


@dataclass(frozen=True)
class Rehearsed:
    """One small step, measured."""

    scale: Scale
    sample: float
    score: float
    update: float
    peak_mb: float
    mean_tokens: float
    """Length of the completions."""
    cut_share: float
    """Completions that hit the limit."""

    @property
    def seconds(self) -> float:
        return self.sample + self.score + self.update


@dataclass(frozen=True)
class Timing:
    """Seconds of one step of the run."""

    sample: float
    score: float
    update: float
    rehearsed: Rehearsed
    """The largest rehearsal; what it does not reach is scaled from it."""
    full: Scale

    @property
    def seconds(self) -> float:
        return self.sample + self.score + self.update

    @property
    def is_scaled(self) -> bool:
        return self.rehearsed.scale != self.full


def rehearse(recipe: Recipe, plan: Plan, budget: float = 10.0) -> Timing:
    """Measure about `budget` seconds of training, loading aside.

    Raises:
        CoveyError: what training would raise.
    """
    full = Scale(plan.prompts_per_window, recipe.config.max_completion_length)
    smallest = _smallest(plan)
    with tempfile.TemporaryDirectory(prefix="covey-plan-") as folder:
        stage = _Stage(recipe, plan, folder)
        done = stage.run(Scale(smallest, min(PROBE_TOKENS, full.tokens)))
        while stage.spent < budget and done.scale != full:
            done = stage.run(next_scale(done, full, smallest, (budget - stage.spent) / STEPS))
    by_rounds = recipe.config.device.type != "cpu"
    return scaled(done, full, plan, recipe.config.num_iterations, by_rounds)


def next_scale(done: Rehearsed, full: Scale, smallest: int, seconds: float) -> Scale:
    """The largest step that the last one lets expect within so many seconds: first longer completions, then more prompts.

    It is at least twice as large, so that few rehearsals do.
    """
    factor = max(2.0, seconds / max(done.seconds, 1e-6))
    if done.scale.tokens < full.tokens:
        longer = min(full.tokens, int(done.scale.tokens * factor))
        factor *= done.scale.tokens / longer
    else:
        longer = full.tokens
    groups = done.scale.groups
    if longer == full.tokens and factor >= 2:
        groups = min(full.groups, max(smallest, int(groups * factor) // smallest * smallest))
    return Scale(groups, longer)


def scaled(done: Rehearsed, full: Scale, plan: Plan, iterations: int = 1, by_rounds: bool = True) -> Timing:
    """Seconds of a full step: in proportion to prompts, which is more than larger batches take, and to tokens.

    Completions that were cut are taken to run to the limit.

    Args:
        by_rounds: decoding takes as long as its longest completion, as on a GPU; else as all of them have tokens.
    """
    cut, limit = done.cut_share, done.scale.tokens
    ended = done.mean_tokens - cut * limit  # tokens of those that ended, over all completions
    tokens = (ended + cut * full.tokens) / max(done.mean_tokens, 1e-9)
    rounds = full.tokens / limit if cut else 1.0
    groups = full.groups / done.scale.groups
    steps = iterations * max(1, plan.window // plan.accumulation)
    trained = plan.prompts_per_step / done.scale.groups / plan.ranks
    return Timing(
        sample=done.sample * groups / plan.ranks * (rounds if by_rounds else tokens) / steps,
        score=done.score * groups / plan.ranks / steps,
        update=done.update * trained * tokens,
        rehearsed=done,
        full=full,
    )


class _Stage:
    """Runs small steps of a recipe; the model is loaded once."""

    def __init__(self, recipe: Recipe, plan: Plan, folder: str) -> None:
        self.recipe, self.plan, self.folder = recipe, plan, folder
        self.kept: dict[str, Any] = {}
        """The model, to be used again."""
        self.spent = 0.0
        """Seconds of training."""

    def run(self, scale: Scale) -> Rehearsed:
        recipe = Recipe(self.recipe.root, self.recipe.name, self._overrides(scale))
        with contextlib.redirect_stdout(
            io.StringIO()
        ):  # the plan and the logs of a small run mean nothing here
            trainer = recipe.trainer(**self.kept)
            self.spent += trainer.train().metrics["train_runtime"]
        self.kept = {"model": trainer.accelerator.unwrap_model(trainer.model), "peft_config": None}
        later = [entry for entry in trainer.state.log_history if "time/sample" in entry][1:]
        last = min(later, key=lambda entry: entry["step_time"])
        return Rehearsed(
            scale=replace(scale, groups=trainer.plan.prompts_per_window),
            sample=last["time/sample"],
            score=last["time/score"],
            update=last["time/update"],
            peak_mb=last["memory/peak_mb"],
            mean_tokens=last["completions/mean_length"],
            cut_share=last["completions/clipped_ratio"],
        )

    def _overrides(self, scale: Scale) -> Sequence[str]:
        completions = scale.groups * self.plan.group_size
        values = {
            **QUIET,
            "train.output_dir": self.folder,
            "train.gradient_accumulation_steps": math.ceil(completions / self.plan.micro_batch),
            "train.max_completion_length": scale.tokens,
        }
        sections = self.recipe.sections
        return [f"{n}={v}" for n, v in values.items() if "." in n or n in sections]


def _smallest(plan: Plan) -> int:
    """Prompts of the smallest step that holds whole micro-batches and whole groups."""
    return math.lcm(plan.group_size, plan.micro_batch) // plan.group_size


def _rounded(groups: int, smallest: int) -> int:
    return max(smallest, groups // smallest * smallest)
