"""The divergence to the reference: values, never negative, finite, and the gradient by exact enumeration.

Policies are small enough to sum over every token, so an expectation is exact and nothing is sampled.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.update.kl import ESTIMATORS, k1, k2, k3, kl_loss
from covey.update.ratios import BOUND, ratio
from covey.update.terms import LossTerms
from tests.terms import tensor


def close(values, tolerance=2e-6):
    return pytest.approx(values, abs=tolerance)


def gradient(function, point):
    point = point.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(point).sum(), point)
    return slope


# Probability of the sampled token under policy and reference → k1, k2, k3 and their derivatives by log p.
EXAMPLES = [
    (0.50, 0.25, (0.693147, 0.240227, 0.193147), (1.0, 0.693147, 0.5)),
    (0.25, 0.50, (-0.693147, 0.240227, 0.306853), (1.0, -0.693147, -1.0)),
]


@pytest.mark.parametrize(("policy", "reference", "values", "slopes"), EXAMPLES)
def test_values_and_derivatives_of_one_token(policy, reference, values, slopes):
    new, other = tensor(policy).log(), tensor(reference).log()
    for estimator, value, slope in zip((k1, k2, k3), values, slopes, strict=True):
        assert estimator(new, other).item() == close(value)
        assert gradient(lambda x, e=estimator: e(x, other), new).item() == close(slope)


POLICY, REFERENCE = tensor(0.5, 0.3, 0.2), tensor(0.25, 0.5, 0.25)


def expected(values):
    """Expectation under the policy, which is held fixed: what an average over samples estimates."""
    return (POLICY * values).sum()


def test_expectations_and_variances():
    new, other = POLICY.log(), REFERENCE.log()
    exact = (POLICY * (new - other)).sum().item()
    assert exact == close(0.148697)
    assert expected(k1(new, other)).item() == close(exact)
    assert expected(k3(new, other)).item() == close(exact)
    assert expected(k2(new, other)).item() == close(0.164234)
    for estimator, variance in ((k1, 0.306357), (k3, 0.003972)):
        values = estimator(new, other)
        assert expected((values - expected(values)) ** 2).item() == close(variance)


TRUE_GRADIENT = [0.272225, -0.197857, -0.074368]
REVERSED_GRADIENT = [0.25, -0.20, -0.05]  # P - Q, the gradient of KL(reference, policy)


def expected_gradient(loss):
    """Gradient by the logits of an on-policy average of `loss(new, reference, ratios)`."""

    def average(logits):
        new = torch.log_softmax(logits, -1)
        return expected(loss(new, REFERENCE.log(), ratio(new, new.detach())))

    return gradient(average, POLICY.log()).tolist()


def test_the_true_gradient():
    def divergence(logits):
        new = torch.log_softmax(logits, -1)
        return (new.exp() * (new - REFERENCE.log())).sum()

    assert gradient(divergence, POLICY.log()).tolist() == close(TRUE_GRADIENT)


@pytest.mark.parametrize(
    ("estimator", "alone", "weighed"),
    [
        ("k1", [0.0, 0.0, 0.0], TRUE_GRADIENT),
        ("k2", TRUE_GRADIENT, TRUE_GRADIENT),
        ("k3", REVERSED_GRADIENT, TRUE_GRADIENT),
    ],
)
def test_what_each_estimator_pushes_towards(estimator, alone, weighed):
    """Differentiated alone only k2 is right; weighed by the ratio all three are."""
    assert expected_gradient(lambda new, other, ratios: kl_loss(estimator, new, other, None)) == close(alone)
    assert expected_gradient(lambda new, other, ratios: kl_loss(estimator, new, other, ratios)) == close(
        weighed
    )


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_weighed_estimators_are_right_off_the_sampling_policy_too(estimator):
    """Tokens drawn from another policy than the present one: the ratio makes up for it."""
    sampler = tensor(0.2, 0.2, 0.6)

    def average(logits):
        new = torch.log_softmax(logits, -1)
        return (sampler * kl_loss(estimator, new, REFERENCE.log(), ratio(new, sampler.log()))).sum()

    assert gradient(average, POLICY.log()).tolist() == close(TRUE_GRADIENT)


@pytest.mark.parametrize(("estimator", "is_right"), [("k1", True), ("k3", False)])
def test_in_the_reward_k1_has_the_gradient_of_the_divergence(estimator, is_right):
    """A penalty in the reward moves the policy by E[k grad log p]."""
    score = (
        torch.eye(3, dtype=torch.float64) - POLICY
    )  # grad of log p(token) by the logits, one row per token
    values = {"k1": k1, "k3": k3}[estimator](POLICY.log(), REFERENCE.log())
    moved = (POLICY * values) @ score
    assert (moved.tolist() == close(TRUE_GRADIENT)) is is_right


def test_the_divergence_of_a_completion_is_the_sum_over_its_tokens():
    new, other = tensor(0.5, 0.25, 0.5).log(), tensor(0.25, 0.5, 0.5).log()
    row, ones = torch.tensor([0, 0, 2]), torch.ones(3)
    t = LossTerms(new, new, new, ones, ones, row, 3, other)
    assert t.row_sums(ESTIMATORS["k1"](t.logprobs, other)).tolist() == close([0.0, 0.0, 0.0])
    assert t.row_sums(ESTIMATORS["k3"](t.logprobs, other)).tolist() == close([0.5, 0.0, 0.0])


@pytest.mark.parametrize(("is_weighted", "slope"), [(True, 0.19775), (False, 0.40000)])
def test_two_token_policy(is_weighted, slope):
    """Policy (0.9, 0.1) against (0.5, 0.5); gradient by the first logit."""
    policy, other = tensor(0.9, 0.1), tensor(0.5, 0.5).log()

    def average(logits):
        new = torch.log_softmax(logits, -1)
        return (policy * kl_loss("k3", new, other, ratio(new, new.detach()) if is_weighted else None)).sum()

    assert gradient(average, policy.log())[0].item() == close(slope, 6e-6)


@given(st.floats(-200, 0), st.floats(-200, 0))
def test_k3_is_never_negative_and_zero_only_on_the_spot(new, reference):
    value = k3(tensor(new), tensor(reference)).item()
    assert value >= -1e-12
    assert k3(tensor(new), tensor(new)).item() == 0.0


@pytest.mark.parametrize("gap", [50.0, 100.0, -50.0, -100.0, 1e4])
def test_far_apart_is_finite(gap):
    """exp(50) is about 5e21; unbounded, one such token would drown the whole step."""
    for estimator in (k1, k2, k3):
        assert torch.isfinite(estimator(tensor(-gap), tensor(0.0))).all()
        assert torch.isfinite(gradient(lambda x, e=estimator: e(x, tensor(0.0)), tensor(-gap))).all()
    new = tensor(gap, -gap)
    assert torch.isfinite(ratio(new, tensor(0.0, 0.0))).all()
    assert torch.isfinite(
        gradient(lambda x: kl_loss("k3", x, tensor(0.0, 0.0), ratio(x, x.detach())), new)
    ).all()
    assert ratio(new, tensor(0.0, 0.0)).max().item() <= math.exp(BOUND) * (1 + 1e-12)
