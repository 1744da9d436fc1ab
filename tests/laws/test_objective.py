"""The clipped objective: worked numbers with their gradients, a slow reference, and what must always hold."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.update.objective import BOUND, Clip, clip_metrics, clipped_loss, objective, ratio

CLIP = Clip(low=0.2, high=0.28)
TWO_SIDED = Clip(low=0.2, high=0.28, delta=4.0)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def value_and_slope(r, advantage, clip):
    """Loss of one token, and its derivative by the log-probability."""
    new = tensor(math.log(r)).requires_grad_()
    loss = clipped_loss(ratio(new, tensor(0.0)), tensor(advantage), clip)
    loss.sum().backward()
    return loss.item(), new.grad.item()


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
        value, slope = value_and_slope(r, advantage, clip)
        assert value == pytest.approx(expected, abs=1e-12)
        assert (slope != 0) is moves
        if moves:
            assert slope == pytest.approx(-advantage * r, abs=1e-9)


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

    log_ratios, values = (tensor(*column) for column in zip(*tokens, strict=True))
    got = clipped_loss(ratio(log_ratios, torch.zeros_like(log_ratios)), values, TWO_SIDED)
    assert got.tolist() == pytest.approx([slow(x, a) for x, a in tokens])


def test_before_the_first_update_the_gradient_is_the_policy_gradient():
    new = tensor(-0.3, -1.2, -0.7).requires_grad_()
    a = tensor(1.5, -0.5, 2.0)
    clipped_loss(ratio(new, new.detach()), a, CLIP).sum().backward()
    assert new.grad.tolist() == pytest.approx((-a).tolist())


TERMS = {
    "new": tensor(-0.1, -0.2, -0.3),
    "old": tensor(-0.2, -0.2, -0.2),
    "advantages": tensor(1.0, 1.0, -2.0),
    "weights": tensor(0.5, 0.5, 0.25),
    "reference": tensor(-0.4, -0.1, -0.3),
    "mask": torch.tensor([True, True, True]),
}


def whole(**changes):
    return objective(**{**TERMS, "clip": CLIP, "beta": 0.1, **changes})


def test_the_objective_is_the_weighted_sum_of_policy_and_divergence():
    def k3(gap):  # gap = l - f
        return math.exp(-gap) + gap - 1

    ratios = [math.exp(0.1), 1.0, math.exp(-0.1)]
    policy = [-ratios[0], -1.0, 2.0 * ratios[2]]
    divergence = [k3(0.3), k3(-0.1), 0.0]
    expected = sum(
        w * (p + 0.1 * r * d) for w, p, r, d in zip([0.5, 0.5, 0.25], policy, ratios, divergence, strict=True)
    )
    loss, metrics = whole()
    assert loss.item() == pytest.approx(expected)
    assert metrics["kl"].value == pytest.approx(sum(divergence) / 3)
    biased, _ = whole(unbiased_kl=False)
    assert biased.item() == pytest.approx(
        sum(w * (p + 0.1 * d) for w, p, d in zip([0.5, 0.5, 0.25], policy, divergence, strict=True))
    )


def test_masked_tokens_are_not_there():
    mask = torch.tensor([True, False, True])
    loss, metrics = whole(mask=mask, new=tensor(-0.1, -90.0, -0.3))
    short, short_metrics = whole(**{name: values[[0, 2]] for name, values in TERMS.items()})
    assert loss.item() == pytest.approx(short.item())
    assert metrics == short_metrics


def test_no_advantage_leaves_the_pure_divergence():
    """Groups without spread still feel the reference: their gradient is that of the KL term alone."""
    new = tensor(-0.1, -0.2, -0.3).requires_grad_()
    loss, _ = whole(new=new, old=new.detach(), advantages=tensor(0.0, 0.0, 0.0))
    loss.backward()
    alone = tensor(-0.1, -0.2, -0.3).requires_grad_()
    gap = tensor(-0.4, -0.1, -0.3) - alone
    k3 = (gap.exp() - gap - 1) * (alone - alone.detach()).exp()
    (0.1 * k3 * tensor(0.5, 0.5, 0.25)).sum().backward()
    assert new.grad.tolist() == pytest.approx(alone.grad.tolist())
    assert any(new.grad)


@pytest.mark.parametrize("gap", [50.0, 100.0, -50.0, -100.0])
def test_far_apart_is_finite(gap):
    new = tensor(-gap, -0.2, -0.3).requires_grad_()
    loss, metrics = whole(new=new)
    loss.backward()
    assert math.isfinite(loss.item())
    assert torch.isfinite(new.grad).all()
    assert metrics["ratio/bounded"].value == pytest.approx(1 / 3)


def test_ratio_is_bounded():
    assert ratio(tensor(0.0), tensor(-100.0)).item() == pytest.approx(math.exp(BOUND))
    assert ratio(tensor(-100.0), tensor(0.0)).item() == pytest.approx(math.exp(-BOUND))


def test_shares_of_clipped_tokens_count_only_where_the_clip_acts():
    # a low ratio matters for a negative advantage, a high one for a positive
    ratios = tensor(0.5, 0.5, 1.5, 1.5, 1.0)
    a = tensor(-1.0, 1.0, -1.0, 1.0, 1.0)
    metrics = clip_metrics(ratios, a, torch.ones(5, dtype=torch.bool), CLIP)
    values = {name: metric.value for name, metric in metrics.items()}
    assert values == {
        "clip_ratio/low_mean": 0.2,
        "clip_ratio/low_min": 0.2,
        "clip_ratio/high_mean": 0.2,
        "clip_ratio/high_max": 0.2,
        "clip_ratio/region_mean": 0.4,
        "ratio/mean": 1.0,
    }


def test_metrics_of_an_empty_mask_have_no_value():
    _, metrics = whole(mask=torch.tensor([False, False, False]))
    assert metrics["kl"].value is None
    assert metrics["clip_ratio/low_mean"].value is None
