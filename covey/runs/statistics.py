"""Statistics for evaluations: intervals, pass@k, paired tests. Pure functions in float64.

The unit of an evaluation is the prompt. Completions of one prompt resemble each other, so intervals and tests resample
prompts, never completions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MAX_EXACT_PAIRS = 16
"""Pairs up to which the permutation test goes through all signs (2^16 of them)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the interval around it; the estimate is NaN, and the interval too, where there is no data."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.95

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The result of a paired test of A and B on the same prompts."""

    difference: float
    """Mean of B minus A."""
    p_value: float
    """Two-sided: probability of a difference at least as large if A and B were the same."""
    pairs: int
    """Prompts that both were asked."""
    better: int
    """Prompts on which B did better."""
    worse: int
    """Prompts on which B did worse."""
    method: str
    """`mcnemar`, or `permutation`."""


def wilson_interval(successes: float, count: float, confidence: float = 0.95) -> Interval:
    """Return the interval of a share (Wilson, 1927) for independent yes-or-no outcomes, one per prompt.

    It stays inside [0, 1] and keeps a width where all or none succeeded.

    Raises:
        ValueError: more successes than trials, or fewer than 0.
    """
    if not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count}; give 0 <= successes <= count.")
    if not count:
        return Interval(math.nan, math.nan, math.nan, confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == count else middle + half
    return Interval(share, low, high, confidence)


def bootstrap_interval(
    values: ArrayLike,
    weights: ArrayLike | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the interval of a mean over prompts: percentiles of the means of resampled prompts (Efron, 1979).

    Args:
        values: one per prompt, for example the mean over its completions. NaN: the prompt is left out. Shape (prompts,).
        weights: weight of each prompt, for example its number of completions; equal by default. Shape (prompts,).
        confidence: share of the resampled means that the interval holds.
        resamples: number of samples of the prompts, each with replacement.
        seed: the same seed gives the same interval.

    With fewer than about 20 prompts the interval is too narrow; no percentile bootstrap can help that.
    """
    given: Floats = np.asarray(values, dtype=np.float64)
    weighed: Floats = np.ones_like(given) if weights is None else np.asarray(weights, dtype=np.float64)
    kept = ~np.isnan(given) & (weighed > 0)
    given, weighed = given[kept], weighed[kept]
    if not given.size:
        return Interval(math.nan, math.nan, math.nan, confidence)
    estimate = float(np.average(given, weights=weighed))
    means = _resampled_means(given, weighed, resamples, seed)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(estimate, float(low), float(high), confidence)


def mean_interval(
    mean: float, standard_error: float | None, units: int, confidence: float = 0.95
) -> Interval:
    """Return the interval of a mean from its standard error: Student's t with `units - 1` degrees of freedom.

    Without a standard error, or with fewer than two units, the interval is NaN.
    """
    if standard_error is None or units < 2:
        return Interval(mean, math.nan, math.nan, confidence)
    half = student_quantile(0.5 + confidence / 2, units - 1) * standard_error
    return Interval(mean, mean - half, mean + half, confidence)


def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution.

    Exact for 1 and 2 degrees of freedom; else the expansion in 1/degrees with four terms (Abramowitz and Stegun,
    26.7.5), which is off by less than 0.2 % at 97.5 % and 3 degrees, and by less for more.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees ** (i + 1) for i, term in enumerate(terms))


def pass_at_k(count: int, correct: int, k: int) -> float:
    """Return the probability that at least one of k completions is right, without bias, from `count` of which `correct` are.

    1 - C(n - c, k) / C(n, k)  (Chen et al., arXiv:2107.03374, equation 1).

    Raises:
        ValueError: fewer than k completions, or more correct ones than there are.
    """
    if not 0 <= correct <= count:
        raise ValueError(
            f"pass_at_k got {correct} correct of {count} completions; give 0 <= correct <= count."
        )
    if not 1 <= k <= count:
        raise ValueError(
            f"pass@{k} needs at least {k} completions per prompt, and k of at least 1; there are {count}."
        )
    return 1.0 - math.comb(count - correct, k) / math.comb(count, k)


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value of McNemar's test on the pairs that differ.

    Args:
        only_a: prompts that A solved and B did not.
        only_b: prompts that B solved and A did not.

    Under the null hypothesis each falls to either side with probability 1/2 (binomial test).
    """
    n, k = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(n, i) for i in range(k + 1))
    return min(1.0, 2 * tail / 2**n)


def paired_test(a: ArrayLike, b: ArrayLike, resamples: int = 20_000, seed: int = 0) -> PairedTest:
    """Compare two policies on the same prompts.

    McNemar's exact test where every value is 0 or 1, else a permutation test that flips the signs of the differences:
    all of them up to `MAX_EXACT_PAIRS` differing pairs, else `resamples` random ones.

    Args:
        a, b: one value per prompt, in the same order; a pair with a NaN is left out. Shape (prompts,).
        resamples: random flips where there are too many pairs to go through all.
        seed: the same seed gives the same p-value.

    Raises:
        ValueError: the two have different lengths.
    """
    first: Floats = np.asarray(a, dtype=np.float64)
    second: Floats = np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"paired_test compares the same prompts in the same order; got shapes {first.shape} and {second.shape}."
        )
    kept = ~(np.isnan(first) | np.isnan(second))
    first, second = first[kept], second[kept]
    differences: Floats = second - first
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    mean = float(differences.mean()) if differences.size else math.nan
    if bool(np.isin(np.concatenate([first, second]), (0.0, 1.0)).all()):
        return PairedTest(mean, mcnemar(worse, better), int(first.size), better, worse, "mcnemar")
    p_value = _sign_flips(differences[differences != 0], resamples, seed)
    return PairedTest(mean, p_value, int(first.size), better, worse, "permutation")


def _resampled_means(values: Floats, weights: Floats, resamples: int, seed: int) -> Floats:
    """Weighted means of prompts drawn with replacement; in blocks, so that memory stays bounded."""
    generator = np.random.default_rng(seed)
    block = max(1, 2_000_000 // values.size)
    means = []
    for start in range(0, resamples, block):
        drawn = generator.integers(0, values.size, (min(block, resamples - start), values.size))
        means.append((values[drawn] * weights[drawn]).sum(axis=1) / weights[drawn].sum(axis=1))
    return np.concatenate(means)


def _sign_flips(differences: Floats, resamples: int, seed: int) -> float:
    """Return the two-sided p-value of the sum of differences under random signs. Monte Carlo counts the observed signs in."""
    if not differences.size:
        return 1.0
    observed = abs(differences.sum())
    margin = 1e-12 * np.abs(differences).sum()  # sums in another order differ in their last digits
    if differences.size <= MAX_EXACT_PAIRS:
        codes = np.arange(2**differences.size)[:, None] >> np.arange(differences.size) & 1
        return float((np.abs((2.0 * codes - 1.0) @ differences) >= observed - margin).mean())
    generator = np.random.default_rng(seed)
    block = max(1, 4_000_000 // differences.size)
    extreme = 0
    for start in range(0, resamples, block):
        # 32 bits give the numbers that 64 do, in half of the time.
        bits = generator.integers(0, 2, (min(block, resamples - start), differences.size), dtype=np.int32)
        sums = 2.0 * (bits.astype(np.float64) @ differences) - differences.sum()
        extreme += int((np.abs(sums) >= observed - margin).sum())
    return (extreme + 1) / (resamples + 1)
