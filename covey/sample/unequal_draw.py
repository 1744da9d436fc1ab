"""Draws of prompts with unequal chances, of a fixed size, in which none comes twice that does not have to.

    π_i = B (f / N + (1 − f) v_i / Σ v)          how often prompt i of N is in a draw of B, on average; at most once where B ≤ N
    u_i = B / (N π_i)                            with this weight, a sum over the draw is on average one over equal chances

(Horvitz and Thompson, 1952.) f is the share that is drawn whatever the values: no prompt's chance is less than f times that of equal
chances, and no weight above 1 / f.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def chances(values: Floats, size: int, floor: float) -> Floats:
    """Return how often each prompt is in a draw, on average: π, whose sum is `size`. Shape (prompts,).

    Args:
        values: what a draw is in proportion to, not negative.
        size: prompts of a draw, B.
        floor: f.
    """
    count, total = len(values), values.sum()
    if size >= count:
        return np.full(count, size / count)
    shares = values / total if total > 0 else np.full(count, 1 / count)
    wanted = size * (floor / count + (1 - floor) * shares)
    limit = max(1.0, size / count)
    full = np.zeros(count, dtype=bool)
    while (
        over := (wanted > limit) & ~full
    ).any():  # what is over the limit goes to the others, in proportion
        full |= over
        wanted[full] = limit
        wanted[~full] *= (size - limit * full.sum()) / wanted[~full].sum()
    return wanted


def drawn(chance: Floats, size: int, generator: np.random.Generator) -> list[int]:
    """Draw `size` prompts, each `chance` times on average, in random order (systematic sampling: one number decides all).

    The prompts lie one after the other in random order, each as long as its chance; steps of length 1 from a random start meet
    each as often as it is long.
    """
    order = generator.permutation(len(chance))
    ends = np.cumsum(chance[order])
    met = np.searchsorted(ends, generator.random() + np.arange(size), side="right")
    met = np.minimum(met, len(chance) - 1)  # the sum may be less than `size` by a rounding error
    return [int(i) for i in generator.permutation(order[met])]


def weights(chance: Floats, size: int) -> Floats:
    """Return the weight of each prompt, u. Shape (prompts,)."""
    return size / (len(chance) * chance)


def generator_of(*key: int) -> np.random.Generator:
    """Return a generator of random numbers that depend on the key alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
