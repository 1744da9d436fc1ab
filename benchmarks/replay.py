"""Replay against plain GRPO and against fewer groups, on a problem whose success rate is known exactly.

    python benchmarks/replay.py --seeds 6

A policy of three tokens, each a soft-max of a linear map of the prompt's features and its place, is trained by RLOO and Adam on prompts that a
teacher of the same form answers; a completion that is right in all three tokens earns 1. Groups are kept, drawn and weighed by Covey's own
buffer. What counts is sampled completions to the success that plain ends with, by plain's own: the mean over all prompts, without noise.

`fewer` samples as many groups a step as replay does, and trains on these alone: what replay saves beyond that is its own.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass

import numpy as np
from learning_numbers import t_interval
from numpy.typing import NDArray

from covey.score.replay_buffer import ReplayBuffer, effective_share

Floats = NDArray[np.float64]
PROMPTS, FEATURES, LENGTH, LETTERS = 200, 12, 3, 6
GROUPS, SIZE = 12, 8


@dataclass(frozen=True)
class Arm:
    """How the groups of a step come about."""

    sampled: int = GROUPS
    replayed: int = 0
    age: int = 4
    min_ess: float = 0.5
    cap: float = 2.0
    is_weighed: bool = True
    """Whether advantages of replayed groups are multiplied by the share of informative groups."""


@dataclass(frozen=True)
class Drawn:
    """A group: its prompt, its completions, their log-probabilities when they were sampled, and their advantages."""

    prompt: int
    tokens: NDArray[np.int64]
    logprobs: Floats
    advantages: Floats


class Problem:
    """Prompts, a teacher, and a policy.

    Args:
        seed: of all random numbers.
        rate: Adam's.
    """

    def __init__(self, seed: int, rate: float) -> None:
        self.generator = np.random.default_rng(seed)
        self.x = self.generator.normal(size=(PROMPTS, FEATURES)) / np.sqrt(FEATURES)
        teacher = 3 * self.generator.normal(size=(LENGTH, FEATURES, LETTERS))
        self.right = np.argmax(np.einsum("pf,lfk->plk", self.x, teacher), -1)
        self.weights = 0.3 * teacher + 0.5 * self.generator.normal(size=teacher.shape)
        self.moments, self.rate, self.steps = [np.zeros_like(teacher), np.zeros_like(teacher)], rate, 0

    def logprobs(self, prompt: int | slice) -> Floats:
        """Return log-probabilities of all letters at each place; shape (..., LENGTH, LETTERS)."""
        logits = np.einsum("...f,lfk->...lk", self.x[prompt], self.weights)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def success(self) -> float:
        """Return the exact mean success over all prompts."""
        table = self.logprobs(slice(None))
        return float(np.exp(np.take_along_axis(table, self.right[..., None], -1)[..., 0].sum(-1)).mean())

    def sample(self, prompt: int) -> Drawn:
        table = self.logprobs(prompt)
        noise = self.generator.gumbel(size=(SIZE, LENGTH, LETTERS))
        tokens = np.argmax(table + noise, -1)
        rewards = (tokens == self.right[prompt]).all(-1).astype(float)
        return Drawn(prompt, tokens, self.of(table, tokens), (rewards - rewards.mean()) * SIZE / (SIZE - 1))

    def of(self, table: Floats, tokens: NDArray[np.int64]) -> Floats:
        """Return the log-probability of each completion."""
        return table[np.arange(LENGTH), tokens].sum(-1)

    def gradient(self, drawn: Drawn, factor: float, cap: float) -> Floats:
        """Return Σ min(ρ, cap) A ∇log π of a group, over its size."""
        table = self.logprobs(drawn.prompt)
        weights = np.minimum(np.exp(self.of(table, drawn.tokens) - drawn.logprobs), cap)
        scores = np.eye(LETTERS)[drawn.tokens] - np.exp(table)
        summed = np.einsum("n,nlk->lk", factor * weights * drawn.advantages, scores) / SIZE
        return np.einsum("f,lk->lfk", self.x[drawn.prompt], summed)

    def move(self, gradient: Floats) -> None:
        """Take a step of Adam uphill."""
        self.steps += 1
        first, second = self.moments
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        unbiased = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
        self.weights += self.rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)


def curve(
    arm: Arm, seed: int, rate: float, steps: int, target: float = 1.0
) -> tuple[int, list[float], float]:
    """Train until success is at the target, for `steps` at most.

    Returns:
        Sampled completions, success after each step, and the share of groups that were trained on again.
    """
    problem, buffer, sampled, again = Problem(seed, rate), ReplayBuffer(arm.age), 0, 0
    rates = [problem.success()]
    while len(rates) <= steps and rates[-1] < target:
        number = len(rates)
        keys = buffer.draw(number, arm.replayed, np.random.default_rng((seed, number)))
        held = buffer.held(keys)
        gaps = {k: problem.of(problem.logprobs(g.prompt), g.tokens) - g.logprobs for k, g in held.items()}
        left = [k for k in keys if effective_share(gaps[k]) >= arm.min_ess]
        buffer.drop(set(keys) - set(left))
        fresh = [
            problem.sample(int(p))
            for p in problem.generator.integers(PROMPTS, size=arm.sampled + arm.replayed - len(left))
        ]
        factor = buffer.share if arm.is_weighed else 1.0
        parts = [problem.gradient(g, 1.0, arm.cap) for g in fresh]
        parts += [problem.gradient(held[k], factor, arm.cap) for k in left]
        problem.move(np.mean(parts, axis=0))
        own = {place: g for place, g in enumerate(fresh) if g.advantages.any()}
        buffer.keep(number, len(fresh), list(own), own)  # type: ignore[arg-type]  # it asks nothing of a group
        rates.append(problem.success())
        sampled, again = sampled + len(fresh) * SIZE, again + len(left)
    return sampled, rates, again / (len(rates) - 1) / (arm.sampled + arm.replayed)


ARMS = {
    "replay: 8 fresh, 4 old": Arm(8, 4),
    "replay: 8 fresh, 4 old, not weighed": Arm(8, 4, is_weighed=False),
    "replay: 6 fresh, 6 old": Arm(6, 6),
    "fewer: 8 groups": Arm(8),
    "fewer: 6 groups": Arm(6),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03])
    options = parser.parse_args()
    for rate in options.rates:
        base = [curve(Arm(), seed, rate, options.steps) for seed in range(options.seeds)]
        first, last = (statistics.fmean(rates[n] for _, rates, _ in base) for n in (0, -1))
        print(f"rate {rate:g}: plain goes from {first:.3f} to {last:.3f}", flush=True)
        for name, arm in ARMS.items():
            logs, shares, never = list[float](), list[float](), 0
            for seed, (of_plain, rates, _) in enumerate(base):
                sampled, own, share = curve(arm, seed, rate, 2 * options.steps, rates[-1])
                logs.append(math.log(sampled / of_plain))
                shares.append(share)
                never += own[-1] < rates[-1]
            low, high = map(math.exp, t_interval(logs))
            mean = math.exp(statistics.fmean(logs))
            print(
                f"  {name:38}{mean:.2f} [{low:.2f}, {high:.2f}] of the completions, {never} never; again {statistics.fmean(shares):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
