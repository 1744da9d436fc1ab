"""Laws of the advantages: what must hold for any rewards, and a slow reference in plain Python."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from covey.score.advantages import EPSILON, gdpo_advantages, group_advantages, has_spread, normalize_then_sum

SCALES = ["group", "batch", "none"]

# Rewards of a size that occurs, on a grid, so that a spread is either 0 or well above rounding.
reward = st.integers(-1000, 1000).map(lambda n: n / 100)
maybe = st.none() | reward


@st.composite
def batches(draw, value=maybe):
    """Rewards (None: unscored) and group ids, groups of any size, in any order."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    ids = draw(st.permutations([g for g, n in enumerate(sizes) for _ in range(n)]))
    rewards = draw(st.lists(value, min_size=len(ids), max_size=len(ids)))
    return rewards, ids


def floats(rewards):
    return np.asarray([math.nan if r is None else r for r in rewards], dtype=np.float64)


def slow(rewards, ids, scale):
    """The definition, row by row."""
    everything = [r for r in rewards if r is not None]
    spread_of_all = statistics.stdev(everything) if len(everything) > 1 else 0.0
    advantages = []
    for own, group in zip(rewards, ids, strict=True):
        siblings = [r for r, g in zip(rewards, ids, strict=True) if g == group and r is not None]
        if own is None or len(siblings) < 2 or len(set(siblings)) == 1:
            advantages.append(0.0)
            continue
        divisor = {
            "group": statistics.stdev(siblings) + EPSILON,
            "batch": spread_of_all + EPSILON,
            "none": 1.0,
        }
        advantages.append((own - statistics.fmean(siblings)) / divisor[scale])
    return advantages


@pytest.mark.parametrize("scale", SCALES)
@given(batches())
def test_equals_the_slow_reference(scale, batch):
    rewards, ids = batch
    assert group_advantages(floats(rewards), ids, scale) == pytest.approx(slow(rewards, ids, scale), abs=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@given(batches())
def test_a_group_sums_to_zero(scale, batch):
    rewards, ids = batch
    advantages = group_advantages(floats(rewards), ids, scale)
    for group in set(ids):
        assert sum(a for a, g in zip(advantages, ids, strict=True) if g == group) == pytest.approx(
            0, abs=1e-9
        )


@pytest.mark.parametrize("scale", SCALES)
@given(batches(), st.integers(-50, 50))
def test_a_constant_added_to_a_group_changes_nothing(scale, batch, constant):
    rewards, ids = batch
    assume(scale != "batch" or len(set(ids)) == 1)  # the spread of the whole batch sees the shift
    shifted = [r if r is None or g else r + constant for r, g in zip(rewards, ids, strict=True)]
    before, after = (group_advantages(floats(r), ids, scale) for r in (rewards, shifted))
    assert after == pytest.approx(before, abs=1e-8)


@pytest.mark.parametrize("scale", SCALES)
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(scale, batch, random):
    rewards, ids = batch
    order = list(range(len(ids)))
    random.shuffle(order)
    straight = group_advantages(floats(rewards), ids, scale)
    mixed = group_advantages(floats([rewards[i] for i in order]), [ids[i] for i in order], scale)
    assert mixed == pytest.approx(straight[order], abs=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@given(batches())
def test_unscored_rows_are_exactly_zero_and_without_influence(scale, batch):
    rewards, ids = batch
    advantages = group_advantages(floats(rewards), ids, scale)
    kept = [i for i, r in enumerate(rewards) if r is not None]
    alone = group_advantages(floats([rewards[i] for i in kept]), [ids[i] for i in kept], scale)
    assert advantages[kept] == pytest.approx(alone, abs=1e-12)
    assert all(a == 0.0 for a, r in zip(advantages, rewards, strict=True) if r is None)
    assert np.isfinite(advantages).all()


@given(st.floats(-1e4, 1e4), st.integers(2, 16), st.data())
def test_float32_rounding_of_equal_rewards_is_never_amplified(value, size, data):
    ulp = np.spacing(np.float32(abs(value)))
    steps = data.draw(st.lists(st.integers(-2, 2), min_size=size, max_size=size))
    noisy = np.asarray([np.float32(value) + np.float32(n) * ulp for n in steps], dtype=np.float32)
    assert not has_spread(noisy)
    for scale in SCALES:
        assert group_advantages(noisy, [0] * size, scale).tolist() == [0.0] * size


@pytest.mark.parametrize("scale", ["group", "none"])
@given(st.lists(reward, min_size=2, max_size=16))
def test_no_advantage_leaves_the_range_of_its_group(scale, rewards):
    """Normalised by the n - 1 deviation, no value is further than (G - 1) / sqrt(G) from the mean (Samuelson)."""
    size = len(rewards)
    largest = np.abs(group_advantages(floats(rewards), [0] * size, scale)).max()
    assert (
        largest <= ((size - 1) / math.sqrt(size) if scale == "group" else max(rewards) - min(rewards)) + 1e-9
    )


@st.composite
def tables(draw):
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    ids = [g for g, n in enumerate(sizes) for _ in range(n)]
    columns = draw(st.integers(1, 3))
    values = draw(
        st.lists(st.lists(maybe, min_size=columns, max_size=columns), min_size=len(ids), max_size=len(ids))
    )
    weights = draw(st.lists(st.integers(-3, 3).map(float), min_size=columns, max_size=columns))
    return values, weights, ids


@given(tables())
def test_normalize_then_sum_is_the_weighted_sum_of_the_columns(table):
    values, weights, ids = table
    expected = np.zeros(len(ids))
    for k, weight in enumerate(weights):
        expected += weight * np.asarray(slow([row[k] for row in values], ids, "group"))
    got = normalize_then_sum(np.asarray([floats(row) for row in values]), weights, ids)
    empty = [all(v is None for v in row) for row in values]
    assert np.isnan(got).tolist() == empty
    assert np.nan_to_num(got) == pytest.approx(expected, abs=1e-9)


@given(tables())
def test_gdpo_is_centred_and_has_a_deviation_of_one_less_epsilon(table):
    values, weights, ids = table
    table = np.asarray([floats(row) for row in values])
    got, before = gdpo_advantages(table, weights, ids), normalize_then_sum(table, weights, ids)
    scored = [i for i, row in enumerate(values) if any(v is not None for v in row)]
    assert sum(got) == pytest.approx(0, abs=1e-8)
    assert all(a == 0.0 for i, a in enumerate(got) if i not in scored)
    if any(got):
        spread = statistics.stdev(before[scored])
        assert statistics.stdev(got[scored]) == pytest.approx(spread / (spread + EPSILON), abs=1e-9)
