"""The frame of every objective: policy, divergence and entropy under one set of weights; masks; losses of one's own."""

import math

import pytest
import torch

from covey.errors import ConfigError
from covey.metrics import Mean
from covey.update.losses.clipped import Clipped
from covey.update.micro_batch import micro_batch
from covey.update.objective import Objective
from covey.update.terms import loss_terms
from tests.terms import gradient, tensor, terms

OLD = [[0.1, 0.0], [-0.1]]  # l - o
REFERENCE = [[-1.3, -0.9], [-1.0]]  # l is -1: d = 0.3, -0.1, 0
WEIGHTS = [0.5, 0.25]


def k3(d):
    return math.exp(-d) + d - 1


@pytest.mark.parametrize("unbiased", [True, False])
def test_the_objective_is_a_weighted_sum(unbiased):
    t = terms(OLD, [1.0, -2.0], reference=REFERENCE, weights=WEIGHTS, entropy=tensor(1.0, 2.0, 3.0))
    loss, metrics = Objective(Clipped(), beta=0.1, unbiased_kl=unbiased)(t, entropy_coef=0.01)
    ratios = [math.exp(0.1), 1.0, math.exp(-0.1)]
    policy = [-ratios[0], -1.0, 2 * ratios[2]]
    divergence = [k3(0.3), k3(-0.1), 0.0]
    expected = sum(
        w * (p + 0.1 * d * (r if unbiased else 1) - 0.01 * h)
        for w, p, d, r, h in zip([0.5, 0.5, 0.25], policy, divergence, ratios, [1, 2, 3], strict=True)
    )
    assert loss.item() == pytest.approx(expected)
    assert metrics["kl"].value == pytest.approx(sum(divergence) / 3)
    assert metrics["entropy"].value == 2.0
    assert metrics["ratio/mean"].value == pytest.approx(sum(ratios) / 3)


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.3), ("k2", 0.045), ("k3", k3(0.3))])
def test_estimators_of_the_divergence(estimator, value):
    t = terms([[0.0]], [0.0], reference=[[-1.3]])
    loss, _ = Objective(Clipped(), beta=2.0, kl_estimator=estimator)(t)
    assert loss.item() == pytest.approx(2 * value)


def test_no_advantage_leaves_the_pure_divergence():
    """Groups without spread still feel the reference: their gradient is that of the KL term alone."""
    t = terms(OLD, [0.0, 0.0], reference=REFERENCE, weights=WEIGHTS)
    loss, _ = Objective(Clipped(), beta=0.1)(t)
    # d/dl of r k3(d) = r (k3(d) + 1 - exp(-d))
    slopes = [
        0.1 * w * math.exp(x) * (k3(d) + 1 - math.exp(-d))
        for w, x, d in zip([0.5, 0.5, 0.25], [0.1, 0.0, -0.1], [0.3, -0.1, 0.0], strict=True)
    ]
    assert gradient(loss, t) == pytest.approx(slopes)


@pytest.mark.parametrize("gap", [50.0, 100.0, -50.0, -100.0])
def test_far_apart_is_finite(gap):
    t = terms([[gap, 0.0]], [-1.0], reference=[[gap, -1.0]], new=[[-gap, -1.0]])
    loss, metrics = Objective(Clipped(), beta=0.1)(t)
    assert math.isfinite(loss.item()) and all(map(math.isfinite, gradient(loss, t)))
    assert metrics["ratio/bounded"].value == 0.5


def test_masked_tokens_are_not_there(sample):
    """Whatever a masked token's numbers are, infinite ones included, nothing changes."""
    batch = micro_batch([sample(3, 1.0, written=(True, False, True))], [0], [0.5])
    batch.old_logprobs, batch.ref_logprobs = tensor(-1.1, -9.0, -1.0), tensor(-1.0, -9.0, -1.2)
    results = []
    for middle in (-2.0, -math.inf):
        new = tensor(-1.0, middle, -1.0).requires_grad_()
        loss, metrics = Objective(Clipped(), beta=0.1)(loss_terms(batch, new, tensor(1.0, 99.0, 3.0)))
        (slope,) = torch.autograd.grad(loss, new)
        assert slope[1] == 0.0
        results.append((loss.item(), slope.tolist(), metrics))
    assert results[0] == results[1]
    assert results[0][2]["entropy"] == Mean(4.0, 2.0)


def test_terms_are_the_tokens_in_the_loss(sample):
    rows = [sample(2, 1.0), sample(3, -1.0, written=(True, False, True)), sample(1, 0.5, in_loss=False)]
    batch = micro_batch(rows, [0, 1, 2], [0.1, 0.2, 0.0])
    new = torch.arange(6.0)
    t = loss_terms(batch, new)
    assert t.logprobs.tolist() == t.old_logprobs.tolist() == [0, 1, 2, 4]
    assert t.row.tolist() == [0, 0, 1, 1] and t.num_rows == 3
    assert t.advantages.tolist() == [1, 1, -1, -1]
    assert t.weights.tolist() == torch.tensor([0.1, 0.1, 0.2, 0.2]).tolist()
    assert t.ref_logprobs is t.entropy is t.is_forking is t.is_covariant is None
    assert t.row_sums(t.logprobs).tolist() == [1, 6, 0]
    assert t.row_means(t.logprobs).tolist() == [0.5, 0.5, 3, 3]


def test_an_empty_mask_is_a_loss_of_zero_with_a_gradient(sample):
    batch = micro_batch([sample(2, in_loss=False)], [0], [0.0])
    batch.ref_logprobs = torch.zeros(2)
    new = torch.tensor([-1.0, -1.0], requires_grad=True)
    loss, metrics = Objective(Clipped(), beta=0.1)(loss_terms(batch, new, torch.ones(2)))
    loss.backward()
    assert loss.item() == 0.0 and new.grad.tolist() == [0.0, 0.0]
    assert all(metrics[n].value is None for n in ("kl", "entropy", "clip_ratio/low_mean", "ratio/mean"))


def test_a_loss_of_your_own():
    def reinforce(t):
        return -t.advantages * t.logprobs

    def with_metrics(t):
        return reinforce(t), {"my/number": Mean(3.0)}

    t = terms([[0.0, 0.0]], [2.0], weights=[0.5])
    assert Objective(reinforce)(t)[0].item() == 2.0
    loss, metrics = Objective(with_metrics)(t)
    assert loss.item() == 2.0 and metrics["my/number"].value == 3.0


def test_a_loss_that_is_not_one_number_per_token_is_named():
    def my_loss(t):
        return (-t.advantages * t.logprobs).mean()

    with pytest.raises(ConfigError, match=r"'my_loss' gave \(\) for 2 tokens.*shape \(2,\)"):
        Objective(my_loss)(terms([[0.0, 0.0]], [1.0]))
    with pytest.raises(ConfigError, match="gave float for 2 tokens"):
        Objective(lambda t: 1.0)(terms([[0.0, 0.0]], [1.0]))


@pytest.mark.parametrize("number", [3.0, 3, torch.tensor(3.0)])
def test_a_metric_that_does_not_add_up_is_named(number):
    def my_loss(t):
        return -t.advantages * t.logprobs, {"my/number": number}

    with pytest.raises(
        ConfigError, match=r"'my_loss' gave the metric 'my/number' as .*from covey.metrics import Mean"
    ):
        Objective(my_loss)(terms([[0.0, 0.0]], [1.0]))


def test_a_loss_without_gradient_is_named():
    def detached(t):
        return -t.advantages * t.logprobs.detach()

    for beta in (0.0, 0.1):
        with pytest.raises(ConfigError, match=r"'detached' gave losses without gradient.*terms.logprobs"):
            Objective(detached, beta=beta)(terms([[0.0]], [1.0], reference=[[-1.0]]))


@pytest.mark.parametrize(
    "use", [lambda t: t.logprobs - t.ref_logprobs, lambda t: t.ref_logprobs.exp() * t.logprobs]
)
def test_a_loss_that_looks_at_a_term_that_is_not_there(use):
    with pytest.raises(ConfigError, match=r"terms.ref_logprobs needs beta above 0"):
        Objective(use)(terms([[0.0, 0.0]], [1.0]))

    def has_a_bug(t):
        return t.logprobs + None

    with pytest.raises(TypeError):  # the user's own, with the reference there
        Objective(has_a_bug, beta=0.1)(
            terms([[0.0]], [1.0], reference=[[-1.0]], is_forking=torch.tensor([True]))
        )
    with pytest.raises(AttributeError, match="no attribute 'nwe'"):
        Objective(lambda t: t.nwe)(terms([[0.0]], [1.0]))


def test_what_comes_back_of_completions():
    t = terms([[0.0, 0.0], [0.0]], [1.0, 1.0])
    values = tensor(1.0, 3.0, 5.0)
    assert t.row_sums(values).tolist() == [4.0, 5.0]
    assert t.row_means(values).tolist() == [2.0, 2.0, 5.0]
