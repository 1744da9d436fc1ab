"""The estimator that the settings name, and the rules that all of them follow."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.score.advantages import gdpo_advantages, group_advantages, normalize_then_sum, whiten
from covey.score.estimators import BASELINES, Outcomes, estimator

NAN = float("nan")
IDS = np.asarray([0] * 4 + [1] * 4)
LENGTHS = np.ones(8)
WEIGHTS = [1.0, 0.5]
VALUES = np.asarray([[1, 1], [0, 1], [0, 0], [1, 0], [0.2, 1], [0.8, 0], [0.8, 1], [0.2, NAN]])
TOTALS = np.nansum(VALUES * WEIGHTS, axis=1)
OUTCOMES = Outcomes(VALUES, np.broadcast_to(WEIGHTS, VALUES.shape), TOTALS, IDS, LENGTHS)


def test_grpo_sums_and_scales_as_told():
    for scale in ("group", "batch", "none"):
        got = estimator("grpo", "sum_then_normalize", scale)(OUTCOMES)
        assert got.tolist() == group_advantages(TOTALS, IDS, scale).tolist()


def test_gdpo_looks_at_each_reward():
    got = estimator("grpo", "normalize_then_sum")(OUTCOMES)
    assert got.tolist() == gdpo_advantages(VALUES, WEIGHTS, IDS).tolist()


def test_gdpo_leaves_a_row_out_whose_total_is_missing():
    # one required reward failed on the first row: its other values do not count either
    totals, without = TOTALS.copy(), VALUES.copy()
    totals[0], without[0] = NAN, NAN
    got = estimator("grpo", "normalize_then_sum")(replace(OUTCOMES, totals=totals))
    assert got.tolist() == gdpo_advantages(without, WEIGHTS, IDS).tolist()
    assert got[0] == 0.0


def test_gdpo_takes_the_weights_of_each_completion():
    """Weights that differ by prompt: each prompt is as if its weights were those of all."""
    weights = np.where(IDS[:, None] == 0, [1.0, 0.5], [0.2, 3.0])
    got = normalize_then_sum(VALUES, weights, IDS)
    for group, own in ((0, [1.0, 0.5]), (1, [0.2, 3.0])):
        alike = normalize_then_sum(VALUES, own, IDS)
        assert got[group == IDS].tolist() == alike[group == IDS].tolist()
    estimated = estimator("grpo", "normalize_then_sum")(replace(OUTCOMES, weights=weights))
    assert estimated.tolist() == whiten(got).tolist()


def test_ranks_are_joined_and_their_groups_stay_apart():
    both = Outcomes.joined([OUTCOMES, OUTCOMES])
    assert len(set(both.groups)) == 4 and len(both.totals) == len(both.values) == len(both.weights) == 16


EVERY = ["grpo", *BASELINES]
reward = st.none() | st.integers(-100, 100).map(lambda n: n / 10)
batches = st.lists(st.tuples(reward, st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=16)


def columns(batch):
    totals = np.asarray([NAN if r is None else r for r, *_ in batch], dtype=np.float64)
    return totals, np.asarray([g for _, g, _ in batch]), np.asarray([n for *_, n in batch], dtype=np.float64)


def estimated(name, totals, ids, lengths):
    values = totals[:, None]
    return estimator(name)(Outcomes(values, np.ones_like(values), totals, ids, lengths))


@pytest.mark.parametrize("name", EVERY)
@given(batches)
def test_unscored_rows_are_exactly_zero_and_without_influence(name, batch):
    totals, ids, lengths = columns(batch)
    got = estimated(name, totals, ids, lengths)
    scored = ~np.isnan(totals)
    assert np.isfinite(got).all() and not got[~scored].any()
    if scored.any():
        alone = estimated(name, totals[scored], ids[scored], lengths[scored])
        assert got[scored] == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("name", EVERY)
@given(batches, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(name, batch, random):
    totals, ids, lengths = columns(batch)
    order = list(range(len(batch)))
    random.shuffle(order)
    straight = estimated(name, totals, ids, lengths)
    mixed = estimated(name, totals[order], ids[order], lengths[order])
    if name == "pass_at_k":  # ties of the best have no lead, so it does not matter which of them is chosen
        assert sorted(mixed) == pytest.approx(sorted(straight), abs=1e-9)
    assert mixed == pytest.approx(straight[order], abs=1e-9)


@pytest.mark.parametrize("name", [n for n in EVERY if n != "maxrl"])
@given(batches, st.integers(-9, 9))
def test_a_constant_changes_nothing(name, batch, constant):
    """Of MaxRL it changes everything: it divides by the mean."""
    totals, ids, lengths = columns(batch)
    before, after = (estimated(name, t, ids, lengths) for t in (totals, totals + constant))
    assert after == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_rounding_noise_is_never_amplified(name):
    ids, lengths = np.zeros(8, dtype=int), np.ones(8)
    one_better = np.asarray([0.35] * 7 + [0.95], dtype=np.float32).astype(np.float64)
    assert np.abs(estimated(name, one_better, ids, lengths)).max() < 10
    jittered = one_better + np.asarray([0, 1, 0, -1, 0, 1, 0, 0]) * 3e-8
    assert np.abs(estimated(name, jittered, ids, lengths)).max() < 10
    same = np.full(8, 0.1) + np.asarray([0, 1, 0, -1, 0, 1, 0, 0]) * 7e-9
    assert not estimated(name, same, ids, lengths).any()
