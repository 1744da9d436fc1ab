"""The clipped loss: worked numbers with their gradients, a slow reference, the levels of the ratio, and what always holds."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.update.losses.clipped import Clip, Clipped, clip_metrics, clipped_loss
from covey.update.ratios import BOUND, ratio
from tests.terms import gradient, tensor, terms

CLIP = Clip(low=0.2, high=0.28)
TWO_SIDED = Clip(low=0.2, high=0.28, delta=4.0)

# ratio, advantage → loss, whether a gradient flows, loss with delta=4 and whether one flows then.
# Lower bound 0.2, upper 0.28 (DAPO, arXiv:2503.14476); delta as in INTELLECT-2 (arXiv:2505.07291).
EXAMPLES = [
    (1.5, 1.0, -1.28, False, -1.28, False),
    (1.25, 1.0, -1.25, True, -1.25, True),
    (0.5, 1.0, -0.5, True, -0.5, True),
    (1.5, -1.0, 1.5, True, 1.5, True),
    (0.5, -1.0, 0.8, False, 0.8, False),
    (5.0, -1.0, 5.0, True, 4.0, False),
    (5.0, 1.0, -1.28, False, -1.28, False),
]


@pytest.mark.parametrize(("r", "advantage", "loss", "flows", "capped", "capped_flows"), EXAMPLES)
def test_clipping(r, advantage, loss, flows, capped, capped_flows):
    for clip, expected, moves in ((CLIP, loss, flows), (TWO_SIDED, capped, capped_flows)):
        t = terms([[math.log(r)]], [advantage])
        losses, _ = Clipped(clip)(t)
        assert losses.item() == pytest.approx(expected, abs=1e-12)
        (slope,) = gradient(losses, t)
        assert slope == pytest.approx(-advantage * r if moves else 0.0, abs=1e-9)


logs = st.floats(-3, 3)
advantages = st.floats(-4, 4)


@given(logs, advantages, st.floats(0, 0.9), st.floats(0, 2))
def test_clipping_never_makes_the_objective_better(log_ratio, advantage, low, high):
    """-min(rA, clip(r)A) ≥ -rA: the clipped loss is an upper bound, so it never rewards a step out of the region."""
    r, a = tensor(math.exp(log_ratio)), tensor(advantage)
    assert clipped_loss(r, a, Clip(low, high)).item() >= (-r * a).item() - 1e-12


@given(logs, advantages)
def test_inside_the_region_nothing_is_clipped(log_ratio, advantage):
    r, a = tensor(math.exp(log_ratio)), tensor(advantage)
    assert clipped_loss(r, a, Clip(1.0, 30.0)).item() == pytest.approx((-r * a).item())


@given(st.lists(st.tuples(logs, advantages), min_size=1, max_size=8))
def test_equals_the_slow_reference(tokens):
    def slow(log_ratio, a):
        r = math.exp(log_ratio)
        free, bounded = min(r, 4.0) * a, min(max(r, 0.8), 1.28) * a
        return -min(free, bounded)

    t = terms([[x] for x, _ in tokens], [a for _, a in tokens])
    losses, _ = Clipped(TWO_SIDED)(t)
    assert losses.tolist() == pytest.approx([slow(x, a) for x, a in tokens])


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_before_the_first_update_the_gradient_is_the_policy_gradient(level):
    t = terms([[0.0, 0.0], [0.0]], [1.5, -0.5])
    losses, _ = Clipped(CLIP, level)(t)
    assert losses.tolist() == pytest.approx([-1.5, -1.5, 0.5])
    assert gradient(losses, t) == pytest.approx([-1.5, -1.5, 0.5])


def test_far_apart_is_finite():
    for gap in (50.0, 100.0, -50.0, -100.0):
        t = terms([[gap, 0.0]], [-1.0])
        losses, _ = Clipped(CLIP)(t)
        assert torch.isfinite(losses).all() and all(map(math.isfinite, gradient(losses, t)))
    assert ratio(tensor(0.0), tensor(-100.0)).item() == pytest.approx(math.exp(BOUND))


# GSPO (arXiv:2507.18071). l - o = [0.2, -0.1, 0.05, 0.25]: mean 0.1, s = 1.105171, product 1.491825.
GAPS = [0.2, -0.1, 0.05, 0.25]
GSPO = Clip(3e-4, 4e-4)


@pytest.mark.parametrize("level", ["sequence", "sequence_token"])
@pytest.mark.parametrize(
    ("gaps", "advantage", "loss", "flows"),
    [
        (GAPS, 1.0, -1.0004, False),
        (GAPS, -1.0, 1.105171, True),
        ([3e-4, -1e-4, 4e-4, 2e-4], 1.0, -1.000200, True),
    ],
)
def test_the_ratio_of_a_sequence(level, gaps, advantage, loss, flows):
    t = terms([gaps], [advantage])
    losses, _ = Clipped(GSPO, level)(t)
    assert losses.tolist() == pytest.approx([loss] * 4, abs=1e-6)
    slopes = gradient(losses, t)
    s = math.exp(sum(gaps) / 4)
    # Summed over the four tokens the two forms have one gradient: -A s for each token.
    assert slopes == pytest.approx([-advantage * s if flows else 0.0] * 4, abs=1e-6)


def test_sequences_do_not_touch_one_another():
    t = terms([GAPS, [0.3], []], [-1.0, -1.0, 1.0])
    losses, _ = Clipped(GSPO, "sequence")(t)
    assert losses.tolist() == pytest.approx([1.105171] * 4 + [math.exp(0.3)], abs=1e-6)


def test_shares_of_clipped_tokens_count_only_where_the_clip_acts():
    # a low ratio matters for a negative advantage, a high one for a positive
    t = terms([[0.0]] * 5, [-1.0, 1.0, -1.0, 1.0, 1.0])
    metrics = clip_metrics(t, tensor(0.5, 0.5, 1.5, 1.5, 1.0), 0.8, 1.28)
    assert {name: metric.value for name, metric in metrics.items()} == {
        "clip_ratio/low_mean": 0.2,
        "clip_ratio/low_min": 0.2,
        "clip_ratio/high_mean": 0.2,
        "clip_ratio/high_max": 0.2,
        "clip_ratio/region_mean": 0.4,
    }


def test_the_shares_are_taken_at_the_bounds_of_the_loss():
    _, metrics = Clipped(CLIP)(terms([[math.log(1.25)], [math.log(1.5)], [math.log(0.75)]], [1.0, 1.0, -1.0]))
    assert (
        metrics["clip_ratio/high_mean"].value == metrics["clip_ratio/low_mean"].value == pytest.approx(1 / 3)
    )
