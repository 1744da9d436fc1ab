"""Rules over whether a run learns at all: rewards that rose and fell, that never rose, that fell while completions grew."""

from __future__ import annotations

import math

import numpy as np

from covey.runs.hints.hint import Finding, rule
from covey.runs.hints.history import Floats, History, trend
from covey.runs.hints.target import independent_metrics
from covey.runs.terminal.phrases import number

WINDOW = 5
"""Steps that a mean is taken over."""

MANY = 40
"""Steps after which a reward should have risen beyond noise."""


FELL = (
    "Lower the learning rate: a third of it is a good next try.",
    "Go back to a checkpoint near the peak.",
    "Raise beta, or read late completions: the policy may have left what the reward can judge.",
)

FLAT = (
    "Raise the learning rate threefold; where reward or length jump about, lower it.",
    "More completions per prompt (num_generations), or prompts that are solved now and then.",
    "Try the reward by hand on a right answer: `covey check` does it.",
)

DOUBLED = (
    "Lower the learning rate, and go back to a checkpoint before the growth.",
    "Read late completions: repetition and filler are typical.",
    "Look at completions/clipped_ratio: answers that are cut off cannot be paid.",
)


@rule("problem")
def reward_peaked_and_fell(history: History) -> list[Finding]:
    """Find that the reward rose beyond noise and then lost at least half of what it had won."""
    rewards = history.metrics.values("reward")
    if rewards.size < 4 * WINDOW:
        return []
    means = np.convolve(rewards, np.full(WINDOW, 1 / WINDOW), "valid")
    peak = int(means[:-WINDOW].argmax())
    start, best, now = float(means[0]), float(means[peak]), float(means[-1])
    # Neighbours' differences hold twice the noise's variance and no trend; a difference of two means has error e.
    error = float(np.diff(rewards).std()) / math.sqrt(WINDOW)
    rise, fall = best - start, best - now
    if fall < 0.5 * max(rise, 0.5 * abs(best)) or fall < 4 * error or fall <= 1e-9:
        return []
    return [
        Finding(
            "The reward peaked and fell.",
            f"Its mean over {WINDOW} steps was {number(best)} at about the {peak + WINDOW}th recorded step, and is "
            f"{number(now)} now; it began at {number(start)}.",
            FELL,
            ("reward", "completions/mean_length", "kl"),
        )
    ]


@rule("warning")
def reward_never_rose(history: History) -> list[Finding]:
    """Find that the reward of the last quarter is not above that of the first beyond noise, and no metric rose either."""
    rewards = history.metrics.values("reward")
    if rewards.size < MANY or any(
        m.values.size >= 4 and m.values[-1] > m.values[0] for m in independent_metrics(history)
    ):
        return []
    moved = trend(rewards)
    saturated = history.metrics.mean("frac_reward_zero_std", WINDOW)
    if moved.z >= 2 or (saturated is not None and saturated >= 0.9) or reward_peaked_and_fell.find(history):
        return []
    return [
        Finding(
            "The reward has not risen.",
            f"Over {history.length} steps it went from {number(moved.early)} to {number(moved.late)}: no rise beyond "
            "its noise.",
            FLAT,
            ("reward", "reward_std", "frac_reward_zero_std", "grad_norm"),
        )
    ]


@rule("problem")
def length_doubles_while_the_reward_falls(history: History) -> list[Finding]:
    """Find that completions are twice as long as at first, and pay less."""
    lengths, rewards = history.metrics.values("completions/mean_length"), history.metrics.values("reward")
    if min(lengths.size, rewards.size) < 4 * WINDOW:
        return []
    length, reward = _ends(lengths), _ends(rewards)
    error = float(np.diff(rewards).std()) / math.sqrt(WINDOW)
    if length[1] < 1.9 * length[0] or reward[0] - reward[1] < max(2 * error, 0.1 * abs(reward[0]), 1e-9):
        return []
    return [
        Finding(
            "Completions have doubled, and the reward has fallen.",
            f"Mean length went from {number(length[0])} to {number(length[1])} tokens, the reward from "
            f"{number(reward[0])} to {number(reward[1])}.",
            DOUBLED,
            ("completions/mean_length", "reward", "completions/clipped_ratio"),
        )
    ]


def _ends(values: Floats) -> tuple[float, float]:
    """Return the mean of the first and of the last steps."""
    return float(values[:WINDOW].mean()), float(values[-WINDOW:].mean())
