"""Noise of the gradient where groups grow, against equal groups with as many completions; exact, nothing is drawn.

    python benchmarks/allocation.py [--size 8]

Rewards are right or wrong, pass rates of prompts follow a Beta distribution, a step has many prompts. Two extremes of what noise is:
`apart`, where the scores ∇log π of completions point in directions of their own, as in a large model, and `along`, where all of them
point along one line. Best is what any rule could reach that knew every pass rate beforehand: sizes in proportion to √(p(1-p)).
"""

from __future__ import annotations

import argparse
from functools import cache
from math import comb

import numpy as np

from covey.score.allocation import chances
from covey.types import Growth

PROMPTS = {
    "early": (0.3, 1.5),
    "even": (1.0, 1.0),
    "two-sided": (0.3, 0.3),
    "late": (1.5, 0.3),
    "nearly done": (8.0, 0.3),
}
"""Beta distributions of pass rates."""
GRID = (np.arange(200) + 0.5) / 200


@cache
def pair(n: int, first: int, wins: int) -> float:
    """Return the weight of a pair of a success and a failure in a group that grew to n, `wins` of which succeeded."""
    if wins in (0, n):
        return 0.0
    _, pairs = chances(Growth(first, first, (True,) * wins + (False,) * (n - wins)))
    return float(pairs[0, -1] / (first * (first - 1)))


def noise(rates: np.ndarray, first: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both kinds of noise for each pass rate where groups that are not solved grow from `first` to n. Shape (rates,) each."""
    apart, mean, square = (np.zeros_like(rates) for _ in range(3))
    for early in range(first):  # a group of `first` successes has a gradient of 0
        for late in range(n - first + 1):
            wins, weight = early + late, pair(n, first, early + late)
            chance = comb(first, early) * comb(n - first, late) * rates**wins * (1 - rates) ** (n - wins)
            value = wins * (n - wins) * weight
            apart += chance * weight**2 * wins * (n - wins) * n
            mean, square = mean + chance * value, square + chance * value**2
    assert np.allclose(mean, rates * (1 - rates)), "unbiased"
    return apart, square - mean**2


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=8, help="completions of a prompt on average")
    size = parser.parse_args().size
    print(f"noise, by that of equal groups of {size}: apart / along\n")
    firsts = range(2, size, 2)
    print(f"{'pass rates':<12} {'mean':>5} {'best':>6}   " + "".join(f"first {k:<10}" for k in firsts))
    for name, (a, b) in PROMPTS.items():
        weights = GRID ** (a - 1) * (1 - GRID) ** (b - 1)
        weights /= weights.sum()
        spread = np.sqrt(GRID * (1 - GRID))
        best = (weights @ spread) ** 2 / (weights @ spread**2)
        equal = [weights @ part for part in noise_of_equal(size)]
        cells = []
        for first in firsts:
            solved = weights @ GRID**first
            n = (size - solved * first) / (1 - solved)
            low, part = int(n), n - int(n)
            sides = [[weights @ kind for kind in noise(GRID, first, low + more)] for more in (0, 1)]
            two = [(1 - part) * s + part * t for s, t in zip(*sides, strict=True)]
            cells.append(" / ".join(f"{value / base:.2f}" for value, base in zip(two, equal, strict=True)))
        mean = weights @ GRID
        print(f"{name:<12} {mean:>5.2f} {best:>6.2f}   " + "".join(f"{cell:<16}" for cell in cells))


def noise_of_equal(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both kinds of noise of leave-one-out in groups of one size. Shape (rates,) each."""
    apart, mean, square = (np.zeros_like(GRID) for _ in range(3))
    for wins in range(size + 1):
        chance = comb(size, wins) * GRID**wins * (1 - GRID) ** (size - wins)
        weight, pairs = 1 / (size * (size - 1)), wins * (size - wins)
        apart += chance * weight**2 * pairs * size
        mean, square = mean + chance * pairs * weight, square + chance * (pairs * weight) ** 2
    return apart, square - mean**2


if __name__ == "__main__":
    main()
