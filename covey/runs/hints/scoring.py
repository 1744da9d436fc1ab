"""Rules over rewards: spread, range, balance, failures, and whether they still mean what they should."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from covey.runs.hints.hint import Finding, rule
from covey.runs.hints.history import History, Range
from covey.runs.hints.target import MetricCurve, independent_metrics
from covey.runs.statistics import wilson_interval
from covey.runs.terminal.phrases import number, percent
from covey.score.advantages import has_spread
from covey.types import ScoredGroup

ADVANTAGES_OF_TASKS = re.compile("tasks/.+/advantage_share")
SEVERAL = 10
"""Steps over which something has to hold that may well hold for a few."""


def nothing_is_scored(groups: Sequence[ScoredGroup]) -> str | None:
    """Return the warning for a step of which no completion has a total."""
    if not groups or any(total is not None for s in groups for total in s.totals):
        return None
    columns = ", ".join(
        f"{name}={str(value)[:60]!r}" for name, value in groups[0].group.prompt.columns.items()
    )
    row = f"Row {groups[0].group.prompt.row} has {columns or 'no column but the prompt'}. "
    return (
        "No reward applied to any completion of this round: all of them returned None, or failed. The step changes nothing. "
        f"{row}Look whether the rewards find there what they ask for."
    )


def all_groups_agree(groups: Sequence[ScoredGroup]) -> str | None:
    """Return the warning for a step of which no group has any spread; None where nothing was scored at all."""
    totals = [np.array([math.nan if t is None else t for t in s.totals], dtype=np.float64) for s in groups]
    if all(np.isnan(t).all() for t in totals) or any(has_spread(t) for t in totals):
        return None
    return (
        "No group has any spread: within each prompt all completions got the same reward, so there is nothing to learn from. "
        "Usual reasons: the task is too hard or too easy for the policy, the reward is constant, or all completions are the same."
    )


@rule("problem", all_groups_agree)
def no_group_has_spread(history: History) -> list[Finding]:
    """Find that nearly all groups agree, so that nearly no completion has an advantage, and nothing is learned."""
    share = history.metrics.mean("frac_reward_zero_std", SEVERAL)
    mean = history.metrics.mean("reward", SEVERAL)
    if share is None or share < 0.9:
        return []
    size = history.settings.get("num_generations", "the group size")
    return [
        Finding(
            "Almost no group has any spread.",
            f"In {percent(share)} of the groups of the last {SEVERAL} steps all completions scored the same"
            + ("" if mean is None else f" (mean reward {number(mean)})")
            + ". Their advantages are 0.",
            (
                "If the reward is at its top, the prompts are too easy: take harder ones.",
                f"If it is at its bottom, they are too hard: easier ones, more completions (num_generations is {size}), "
                "partial credit.",
                "Look at a group in the report: if answers differ and scores do not, the reward does not see it.",
                "Turn on dynamic_sampling, which replaces groups without signal.",
            ),
            ("frac_reward_zero_std", "reward", "reward_std"),
        )
    ]


@rule("warning")
def reward_is_constant(history: History) -> list[Finding]:
    """Find rewards that have given one and the same number from the first step on: they teach nothing."""
    found = []
    for name, scores in _score_ranges(history).items():
        if scores.count < SEVERAL or scores.low != scores.high:
            continue
        found.append(
            Finding(
                f"Reward {name!r} is constant.",
                f"It gave {number(scores.low)} to every completion of {scores.count} steps.",
                (
                    "Run it by hand on a right and a wrong completion from the report.",
                    "Check that it reads the completions in their form: text, or messages for chat prompts.",
                    "If nothing can score yet, show the format in the prompt, or give partial credit.",
                ),
                (f"rewards/{name}/mean", f"rewards/{name}/std"),
                subject=name,
            )
        )
    return found


def _score_ranges(history: History) -> dict[str, Range]:
    """Return smallest and largest score over all steps by reward; a reward that never gave a number is left out."""
    found = {}
    for name in history.rewards:
        low = history.statistics.range(f"rewards/{name}/min")
        high = history.statistics.range(f"rewards/{name}/max")
        if low is not None and high is not None:
            found[name] = Range(low.low, high.high, low.count)
    return found


@rule("note")
def reward_is_saturated(history: History) -> list[Finding]:
    """Find rewards that once told completions apart and now give nearly all of them their best number."""
    found = []
    for name, scores in _score_ranges(history).items():
        mean = history.statistics.mean(f"rewards/{name}/mean", SEVERAL)
        constant = history.statistics.mean(f"rewards/{name}/constant_share", SEVERAL)
        has_bound = bool(history.metrics.values(f"constraints/{name}/multiplier", 1).size)
        if mean is None or constant is None or constant < 0.9 or has_bound:
            continue
        best = scores.high if history.rewards[name] >= 0 else scores.low
        span = scores.high - scores.low
        if not span or abs(best - mean) > 0.02 * span:
            continue
        found.append(
            Finding(
                f"Reward {name!r} is saturated.",
                f"Its mean over the last {SEVERAL} steps is {number(mean)}, its best is {number(best)}, and in "
                f"{percent(constant)} of the groups it is the same for all.",
                (
                    "It has done its work: what is learned now comes from the other rewards.",
                    "If it should go on teaching, make it finer or take harder prompts.",
                ),
                (f"rewards/{name}/mean",),
                subject=name,
            )
        )
    return found


@rule("warning")
def one_reward_dominates(history: History) -> list[Finding]:
    """Find that nearly all of the advantage comes from one of several rewards."""
    names = [n for n in history.rewards if history.statistics.values(f"rewards/{n}/count", SEVERAL).sum() > 0]
    shares = {n: history.statistics.mean(f"rewards/{n}/advantage_share", SEVERAL) for n in names}
    known = {n: s for n, s in shares.items() if s is not None}
    if len(known) < 2:
        return []
    name, share = max(known.items(), key=lambda item: item[1])
    if share < 0.9:
        return []
    others = ", ".join(repr(n) for n in known if n != name)
    return [
        Finding(
            f"Reward {name!r} does nearly all of the training.",
            f"It makes {percent(share)} of the absolute advantage over the last {SEVERAL} steps; "
            f"{percent(max(0.0, 1 - share))} is left for {others}.",
            (
                "If that is not wanted, lower its weight or raise those of the others.",
                "multi_objective_aggregation='normalize_then_sum' brings rewards of different range to one scale.",
            ),
            tuple(f"rewards/{n}/advantage_share" for n in known),
            subject=name,
        )
    ]


KEEPING = (
    "Look whether groups differ in this reward (rewards/<name>/zero_std_share): where they do not, no multiplier can move it.",
    "If its mean still moves towards the bound, wait, or raise the learning rate.",
    "Else the bound asks for more than the policy can do beside the other rewards: loosen it, or raise multiplier_max.",
)


@rule("warning")
def a_bound_cannot_be_kept(history: History) -> list[Finding]:
    """Find rewards that miss their bound although their multiplier is as large as it may be."""
    found = []
    for name in history.rewards:
        at_max = history.metrics.mean(f"constraints/{name}/at_max", 2 * SEVERAL)
        missed = history.metrics.mean(f"constraints/{name}/violation", 2 * SEVERAL)
        if at_max is None or missed is None or at_max < 1 or missed <= 0:
            continue
        found.append(
            Finding(
                f"The bound of reward {name!r} is not kept.",
                f"For {2 * SEVERAL} steps its multiplier has been at multiplier_max, and the mean misses the bound by {number(missed)}.",
                KEEPING,
                (f"constraints/{name}/value", f"constraints/{name}/multiplier"),
                subject=name,
            )
        )
    return found


@rule("warning")
def one_task_dominates(history: History) -> list[Finding]:
    """Find that nearly all of the gradient comes from one of several tasks, which has no such part of the completions."""
    names = [name.split("/")[1] for name in history.metrics.named(ADVANTAGES_OF_TASKS)]
    shares = {n: history.metrics.mean(f"tasks/{n}/advantage_share", SEVERAL) for n in names}
    name, share = max(
        ((n, s) for n, s in shares.items() if s is not None), key=lambda x: x[1], default=("", 0.0)
    )
    samples = history.metrics.mean(f"tasks/{name}/sample_share", SEVERAL)
    if share < 0.9 or samples is None or samples > 0.8:
        return []
    return [
        Finding(
            f"Task {name!r} does nearly all of the training.",
            f"It makes {percent(share)} of the absolute advantage that was trained on in the last {SEVERAL} steps, with "
            f"{percent(samples)} of the completions.",
            (
                "If its rewards are larger than those of the others, bring them to one range, or set scale_rewards='group'.",
                "task_weights='equal' gives each task the same part of the gradient.",
                "If the others have no spread, look at their prompts: too easy, or too hard.",
            ),
            (f"tasks/{name}/advantage_share", f"tasks/{name}/sample_share"),
            subject=name,
        )
    ]


@rule("warning")
def reward_never_applies(history: History) -> list[Finding]:
    """Find rewards that have scored no completion at all."""
    found = []
    for name in history.rewards:
        counts = history.statistics.range(f"rewards/{name}/count")
        if counts is None or counts.count < SEVERAL or counts.high > 0:
            continue
        found.append(
            Finding(
                f"Reward {name!r} never applies.",
                f"It gave no number to any completion of {counts.count} steps.",
                (
                    "Check the column or the condition that routes prompts to it.",
                    "Run `covey check`, which shows how many rows each reward applies to.",
                ),
                (f"rewards/{name}/count",),
                subject=name,
            )
        )
    return found


@rule("warning")
def reward_fails(history: History) -> list[Finding]:
    """Find rewards that fail on more than one sample in a hundred, beyond doubt (Wilson); those samples are left out."""
    found = []
    for name in history.rewards:
        share = history.statistics.mean(f"rewards/{name}/failed_share", SEVERAL)
        samples = history.statistics.values("completions", SEVERAL).sum()
        if not share or not samples or wilson_interval(share * samples, samples).low < 0.01:
            continue
        found.append(
            Finding(
                f"Reward {name!r} fails.",
                f"It failed on {percent(share)} of the completions of the last {SEVERAL} steps. Those samples are left "
                "out, and if failing goes with what they say, the rest is biased.",
                (
                    "Read the tracebacks: the report lists them by reward.",
                    "If it is a time limit, raise it or make the reward faster; if a service, check that it is up.",
                ),
                (f"rewards/{name}/failed",),
                severity="problem" if share >= 0.1 else None,
                subject=name,
            )
        )
    return found


@rule("warning", nothing_is_scored)
def completions_go_unscored(history: History) -> list[Finding]:
    """Find that no reward applies to a good part of the completions."""
    share = history.statistics.mean("reward/unscored_share", SEVERAL)
    if share is None or share < 0.1:
        return []
    return [
        Finding(
            "Completions go unscored.",
            f"No reward applied to {percent(share)} of the completions of the last {SEVERAL} steps; they cost sampling "
            "and teach nothing.",
            (
                "Run `covey check`: it names the rows that no reward applies to.",
                "If a reward returns None for answers that it cannot read, return 0 for what the policy can help.",
            ),
            ("reward/unscored",),
            severity="problem" if share > 0.5 else None,
        )
    ]


@rule("warning")
def reward_follows_length(history: History) -> list[Finding]:
    """Find that within groups the reward is nearly a function of the length."""
    correlation = history.statistics.mean("reward_length_correlation", 2 * SEVERAL)
    if correlation is None or abs(correlation) < 0.8:
        return []
    kind = "longer" if correlation > 0 else "shorter"
    return [
        Finding(
            f"The reward pays for {kind} completions.",
            f"Within groups, reward and length correlate with {correlation:+.2f} over the last {2 * SEVERAL} steps.",
            (
                "If length is not the goal, look for the reward that depends on it and lower its weight.",
                "Compare a short and a long completion of one group in the report.",
            ),
            ("reward", "completions/mean_length"),
        )
    ]


@rule("problem")
def reward_rises_while_the_metric_falls(history: History) -> list[Finding]:
    """Find that the policy has found something that pays and is not what was meant."""
    return [f for m in independent_metrics(history) for f in _hacked(history, m)][:1]


def _hacked(history: History, measured: MetricCurve) -> list[Finding]:
    peak = int(measured.values.argmax())
    if measured.values.size < 4 or peak > measured.values.size - 3:
        return []
    best, now = float(measured.values[peak]), float(measured.values[-2:].mean())
    # Two standard errors of the difference of two shares, where it is a share; else a tenth of the best value.
    is_share = measured.values.min() >= 0 and best <= 1 and measured.rows > 0
    noise = 2 * math.sqrt(2 * max(best * (1 - best), 0.05) / measured.rows) if is_share else 0.0
    rewards = history.metrics.since("reward", measured.steps[peak])
    if best - now <= max(noise, 0.1 * abs(best)) or rewards.size < SEVERAL:
        return []
    third = max(2, rewards.size // 3)
    before, after = float(rewards[:third].mean()), float(rewards[-third:].mean())
    if after <= before:
        return []
    return [
        Finding(
            "The reward rises while the metric falls.",
            f"Since step {measured.steps[peak]}, {measured.name} fell from {number(best)} to {number(now)}, and the "
            f"training reward rose from {number(before)} to {number(after)}. The policy has found something that pays "
            "and is not what was meant.",
            (
                f"Go back to a checkpoint near step {measured.steps[peak]}.",
                "Read the completions with the highest reward, early beside late: what changed is what is paid for.",
                "Close the hole in the reward; raising beta only slows it down.",
            ),
            ("reward", measured.name),
        )
    ]


@rule("note")
def no_metric_but_the_reward(history: History) -> list[Finding]:
    """Find that nothing but the reward tells whether the run gets better."""
    if history.length < 3 * SEVERAL or independent_metrics(history):
        return []
    return [
        Finding(
            "Nothing but the reward is measured.",
            f"{history.length} steps, and no evaluation with a metric of its own. A reward that rises may be one that "
            "is gamed.",
            (
                "Give eval_dataset and compute_metrics with the metric that you would publish, and set eval_steps.",
                "Choose the best checkpoint by that metric (metric_for_best_model), not by the reward.",
            ),
            ("reward",),
        )
    ]


@rule("note")
def scoring_takes_most_of_the_time(history: History) -> list[Finding]:
    """Find that the rewards are slower than the model."""
    score, step = history.metrics.mean("time/score", SEVERAL), history.metrics.mean("step_time", SEVERAL)
    if score is None or not step or score < 0.5 * step:
        return []
    return [
        Finding(
            "Scoring takes most of the time.",
            f"{percent(score / step)} of the last {SEVERAL} steps went into rewards ({score:.1f} of {step:.1f} s).",
            (
                "Make a reward that waits for a service a coroutine: coroutines run together.",
                "Gate the expensive reward behind a cheap one; cache what repeats.",
            ),
            ("time/score", "time/sample", "time/update"),
        )
    ]
