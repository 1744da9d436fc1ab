"""Seconds per step from a few small steps of the real trainer, on the real data, in a folder that is thrown away.

The first rehearsal is small in every way, the second has more prompts: that tells fixed costs from growing ones. What they
cost says how long completions may be and how many prompts a step may have in the next one. It ends when the time is over,
or the whole step has been rehearsed. Steps of several processes are
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

from covey.forecast.costs import Work, longest_length, mean_length, relative_cost
from covey.metrics import PHASES
from covey.plan import Plan
from covey.recipes import Recipe

PROBE_TOKENS = 16
"""Length of completions in the first rehearsal."""
MORE_PROMPTS = 4
"""Times as many prompts in the second."""
AFFORDABLE = 0.4
"""Share of the time that the second may take."""
STEPS = 3
"""Of each rehearsal; the first warms up, and the faster of the others counts: what else the machine does is no part."""

QUIET = {
    "train.report_to": "none", "train.record": "false", "train.save_strategy": "'no'", "train.push_to_hub": "false",
    "train.eval_strategy": "'no'", "train.eval_on_start": "false", "train.load_best_model_at_end": "false",
    "train.disable_tqdm": "true", "train.display": "plain", "train.logging_strategy": "steps",
    "train.logging_steps": "1", "train.log_completions": "false", "train.resume_from_checkpoint": "", "eval": "",
    "train.num_iterations": "1", "train.steps_per_generation": "", "train.generation_batch_size": "", "callbacks": "",
    "compute_metrics": "", "train.max_steps": str(STEPS),
    "train.learning_rate": "0.0",
}  # fmt: skip
"""What a rehearsal leaves out of a recipe: everything that writes, prints or evaluates, and learning: a policy whose
completions are cut learns to be brief."""


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
    prompt_tokens: float = 0.0
    """Mean length of a prompt."""

    @property
    def seconds(self) -> float:
        return self.sample + self.score + self.update


@dataclass(frozen=True)
class Timing:
    """Seconds of one step of the run, the machine as busy as while it was measured."""

    sample: float
    score: float
    update: float
    low: float
    """No step of this size takes less: completions as long as those of the rehearsal, and larger batches cost nothing more."""
    high: float
    """Or more: all that were cut run to the limit, and everything grows in proportion."""
    rehearsed: Rehearsed
    """The largest rehearsal; what it does not reach is scaled from it."""
    full: Scale
    mean_tokens: float
    """Length of a completion that it is reckoned with."""

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
    full = Scale(plan.prompts_per_rollout, recipe.config.max_completion_length)
    smallest = _smallest(plan)
    seen: list[Rehearsed] = []
    with tempfile.TemporaryDirectory(prefix="covey-plan-") as folder:
        stage = _Stage(recipe, plan, folder)
        scale: Scale | None = Scale(smallest, min(PROBE_TOKENS, full.tokens))
        while scale is not None:
            seen.append(stage.run(scale))
            scale = following(seen, full, smallest, budget - stage.spent)
    return foreseen(seen, full, plan, recipe.config.num_iterations)


def following(seen: Sequence[Rehearsed], full: Scale, smallest: int, left: float) -> Scale | None:
    """The next rehearsal; None where the time is over or nothing is left to rehearse.

    Args:
        left: seconds.
    """
    last = seen[-1]
    if left <= 0 or last.scale == full:
        return None
    more = min(full.groups, MORE_PROMPTS * last.scale.groups) // smallest * smallest
    cost = last.seconds * STEPS * more / last.scale.groups
    if len(seen) == 1 and more > last.scale.groups and cost < AFFORDABLE * left:
        return replace(last.scale, groups=more)
    return next_scale(last, full, smallest, left / STEPS)


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


def foreseen(seen: Sequence[Rehearsed], full: Scale, plan: Plan, iterations: int = 1) -> Timing:
    """Seconds of a full step, from every rehearsal, and the range that the last one leaves.

    Each phase is the last rehearsal's, times what `covey.forecast.costs` says that the larger step costs more. The range
    holds wherever a larger step takes at least as long, and at most in proportion longer.
    """
    last, of = seen[-1], plan.group_size
    rounds_of_sampling = iterations * max(
        1, plan.micro_batches_per_pass // plan.accumulation
    )  # optimizer steps that share one
    sampled, trained = full.groups / plan.ranks, plan.prompts_per_step / plan.ranks
    tokens = _expected(last, full)
    rounds = longest_length(last.mean_tokens, last.cut_share, full.tokens, sampled * of)
    wanted: dict[str, Work] = {
        "sample": (rounds if last.cut_share else _rounds(last, of), sampled * of * tokens),
        "score": (1.0, sampled * of),
        "update": (1.0, trained * (last.prompt_tokens + of * tokens)),
    }
    seconds, low, high = {}, 0.0, 0.0
    for phase in PHASES:
        share, groups = (1, trained) if phase == "update" else (rounds_of_sampling, sampled)
        costs = [(_work(r, of)[phase], getattr(r, phase)) for r in seen]
        least, most = _bounds(last, phase, groups, full)
        expected = getattr(last, phase) * relative_cost(costs, wanted[phase])
        seconds[phase] = min(max(expected, least), most) / share
        low, high = low + least / share, high + most / share
    return Timing(**seconds, low=low, high=high, rehearsed=last, full=full, mean_tokens=tokens)


def _work(done: Rehearsed, of: int) -> dict[str, Work]:
    """By phase, how often a rehearsal had the costs that do not grow, and how large it was; `of` completions per prompt."""
    groups = done.scale.groups
    return {
        "sample": (_rounds(done, of), groups * of * done.mean_tokens),
        "score": (1.0, float(groups * of)),
        "update": (1.0, groups * (done.prompt_tokens + of * done.mean_tokens)),
    }


def _bounds(done: Rehearsed, phase: str, groups: float, full: Scale) -> tuple[float, float]:
    """Least and most seconds of a phase with so many prompts."""
    ratio, longer = groups / done.scale.groups, 1.0
    if done.cut_share and phase != "score":
        longer = _at_limit(done, full) / max(done.mean_tokens, 1e-9)
    if done.cut_share and phase == "sample":
        longer = max(longer, full.tokens / done.scale.tokens)
    spent = getattr(done, phase)
    return spent * min(1.0, ratio), spent * max(1.0, ratio) * longer


def _expected(done: Rehearsed, full: Scale) -> float:
    """Mean length of a completion at the full limit."""
    return (
        done.mean_tokens
        if done.scale.tokens == full.tokens
        else mean_length(done.mean_tokens, done.cut_share, full.tokens)
    )


def _at_limit(done: Rehearsed, full: Scale) -> float:
    """Mean length where every completion that was cut runs to the full limit."""
    return done.mean_tokens + done.cut_share * (full.tokens - done.scale.tokens)


def _rounds(done: Rehearsed, group: int) -> float:
    """Rounds of decoding: the length of its longest completion."""
    if done.cut_share:
        return float(done.scale.tokens)
    return longest_length(done.mean_tokens, 0.0, done.scale.tokens, done.scale.groups * group)


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
            scale=replace(scale, groups=trainer.plan.prompts_per_rollout),
            sample=last["time/sample"],
            score=last["time/score"],
            update=last["time/update"],
            peak_mb=last["memory/peak_mb"],
            mean_tokens=last["completions/mean_length"],
            cut_share=last["completions/clipped_ratio"],
            prompt_tokens=_prompt_tokens(trainer),
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


def _prompt_tokens(trainer: Any) -> float:
    """Mean length of a prompt, over the completions of a run."""
    logs = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry]
    completions = len(logs) * trainer.plan.prompts_per_rollout * trainer.plan.group_size
    written = sum(entry["completions/mean_length"] for entry in logs) / len(logs)
    return max(0.0, float(logs[-1]["num_tokens"]) / completions - written)
